"""From remedies in force, tried and learned to the body that shows them; nothing is looked up and nothing judged."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.control import types
from supervisor.core.choosing import Experience
from supervisor.core.job import Job
from supervisor.core.remedies import BY_THE_AGENT, WORDS
from supervisor.store.records import RemedyRecord


def remedy_report(
    jobs: Iterable[Job], tried: Iterable[RemedyRecord], learned: Iterable[Experience]
) -> types.RemedyReport:
    """Return what `remedies` shows."""
    return types.RemedyReport(
        in_force=[one for job in jobs for one in in_force(job)],
        tried=[
            types.RemedyTried(
                job=one.job,
                attempt=one.attempt,
                at=one.at_unix_s,
                cause=one.cause,
                remedy=one.remedy,
                step=one.step,
                outcome=one.outcome,
                settled_at=one.settled_unix_s,
                reason=one.reason,
            )
            for one in tried
        ],
        learned=[
            types.RemedyLearned(cause=one.cause, remedy=one.remedy, helped=one.helped, failed=one.failed)
            for one in learned
        ],
    )


def in_force(job: Job) -> list[types.RemedyInForce]:
    """Return the remedies that a job's next attempt would get; those that its owner forbids by now are left out."""
    return [
        types.RemedyInForce(
            job=job.name,
            remedy=one.remedy,
            cause=one.cause,
            attempt=one.attempt,
            what=WORDS.get(one.remedy, one.remedy),
            said=one.said,
        )
        for one in job.course.in_force
        if job.limits.remedies.allows(one.remedy)
    ]


def in_words(job: Job) -> list[str]:
    """Return the remedies in force, a line each, as `status` shows them."""
    return [f"{one.remedy} against {one.cause}: {_state(one)}" for one in in_force(job)]


def _state(one: types.RemedyInForce) -> str:
    if one.said is not None:
        return one.said
    return f"{one.what} (the agent has not told of it yet)" if one.remedy in BY_THE_AGENT else one.what
