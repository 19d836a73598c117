"""Converts remedies in force, tried and learned into the body that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.control import record_types
from supervisor.core.job import Job
from supervisor.core.remedies.context import Experience
from supervisor.core.remedies.table import BY_NAME, describe_remedy
from supervisor.core.remedies.trials import Outcome, Trial
from supervisor.store.records import RemedyRecord


def remedy_report(
    jobs: Sequence[Job], tried: Iterable[RemedyRecord], learned: Iterable[Experience]
) -> record_types.RemedyReport:
    """Return what `remedies` shows."""
    return record_types.RemedyReport(
        in_force=[remedy for job in jobs for remedy in in_force(job)],
        tried=_with_skipped(tried, jobs),
        learned=[
            record_types.RemedyLearned(
                cause=experience.cause, remedy=experience.remedy, helped=experience.helped, failed=experience.failed
            )
            for experience in learned
        ],
    )


def _with_skipped(tried: Iterable[RemedyRecord], jobs: Iterable[Job]) -> list[record_types.RemedyTried]:
    """Return the trials, newest first, with the environments that were skipped.

    A row is of an attempt; that of a skipped environment, which had none, was taken by what was tried in its place.
    """
    rows = [_recorded_entry(remedy_record) for remedy_record in tried]
    skipped = [
        _skipped_entry(job.name, trial)
        for job in jobs
        for trial in reversed(job.course.trials)
        if trial.outcome is Outcome.SKIPPED and trial.environment is not None
    ]
    shown = {(trial.job, trial.attempt, trial.reason) for trial in skipped}
    others = [trial for trial in rows if (trial.job, trial.attempt, trial.reason) not in shown]
    return sorted([*others, *skipped], key=lambda trial: trial.at, reverse=True)


def _recorded_entry(tried: RemedyRecord) -> record_types.RemedyTried:
    return record_types.RemedyTried(
        job=tried.job,
        attempt=tried.attempt,
        at=tried.at_unix_s,
        cause=tried.cause,
        remedy=tried.remedy,
        step=tried.step,
        outcome=tried.outcome,
        settled_at=tried.settled_unix_s,
        reason=tried.reason,
    )


def _skipped_entry(job: str, trial: Trial) -> record_types.RemedyTried:
    return record_types.RemedyTried(
        job=job,
        attempt=trial.attempt,
        at=trial.at.unix_s,
        cause=trial.cause,
        remedy=trial.remedy,
        step=trial.step,
        outcome=trial.outcome.value,
        settled_at=None if trial.settled_at is None else trial.settled_at.unix_s,
        reason=trial.reason,
    )


def in_force(job: Job) -> list[record_types.RemedyInForce]:
    """Return the remedies that a job's next attempt would get; those that its owner forbids by now are left out."""
    return [
        record_types.RemedyInForce(
            job=job.name,
            remedy=remedy.remedy,
            cause=remedy.cause,
            attempt=remedy.attempt,
            what=describe_remedy(remedy.remedy, remedy.times),
            applied=remedy.applied,
        )
        for remedy in job.course.in_force
        if job.limits.remedies.allows(remedy.remedy)
    ]


def in_words(job: Job) -> list[str]:
    """Return the remedies in force, a line each, as `status` shows them."""
    return [f"{remedy.remedy} against {remedy.cause}: {_describe_state(job, remedy)}" for remedy in in_force(job)]


def _describe_state(job: Job, remedy: record_types.RemedyInForce) -> str:
    if remedy.applied is not None:
        return remedy.applied
    spec = BY_NAME.get(remedy.remedy)
    if spec is None or not spec.reported:
        return remedy.what
    if spec.unused and _has_steps_with(job, remedy):
        return f"{remedy.what} (set; {spec.unused})"
    return f"{remedy.what} (not reported by the agent yet)"


def _has_steps_with(job: Job, remedy: record_types.RemedyInForce) -> bool:
    """Whether the present or last attempt has the remedy and has made a step."""
    attempt = job.attempt
    return attempt is not None and attempt.number >= remedy.attempt and attempt.last_step is not None
