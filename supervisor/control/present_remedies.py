"""Converts remedies in force, tried and learned into the body that shows them."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.control import types
from supervisor.core.job import Job
from supervisor.core.remedies.context import Experience
from supervisor.core.remedies.table import BY_NAME
from supervisor.store.records import RemedyRecord


def remedy_report(
    jobs: Iterable[Job], tried: Iterable[RemedyRecord], learned: Iterable[Experience]
) -> types.RemedyReport:
    """Return what `remedies` shows."""
    return types.RemedyReport(
        in_force=[remedy for job in jobs for remedy in in_force(job)],
        tried=[
            types.RemedyTried(
                job=remedy_record.job,
                attempt=remedy_record.attempt,
                at=remedy_record.at_unix_s,
                cause=remedy_record.cause,
                remedy=remedy_record.remedy,
                step=remedy_record.step,
                outcome=remedy_record.outcome,
                settled_at=remedy_record.settled_unix_s,
                reason=remedy_record.reason,
            )
            for remedy_record in tried
        ],
        learned=[
            types.RemedyLearned(
                cause=experience.cause, remedy=experience.remedy, helped=experience.helped, failed=experience.failed
            )
            for experience in learned
        ],
    )


def in_force(job: Job) -> list[types.RemedyInForce]:
    """Return the remedies that a job's next attempt would get; those that its owner forbids by now are left out."""
    return [
        types.RemedyInForce(
            job=job.name,
            remedy=remedy.remedy,
            cause=remedy.cause,
            attempt=remedy.attempt,
            what=BY_NAME[remedy.remedy].words if remedy.remedy in BY_NAME else remedy.remedy,
            applied=remedy.applied,
        )
        for remedy in job.course.in_force
        if job.limits.remedies.allows(remedy.remedy)
    ]


def in_words(job: Job) -> list[str]:
    """Return the remedies in force, a line each, as `status` shows them."""
    return [f"{remedy.remedy} against {remedy.cause}: {_describe_state(remedy)}" for remedy in in_force(job)]


def _describe_state(remedy: types.RemedyInForce) -> str:
    if remedy.applied is not None:
        return remedy.applied
    if remedy.remedy in BY_NAME and BY_NAME[remedy.remedy].reported:
        return f"{remedy.what} (not reported by the agent yet)"
    return remedy.what
