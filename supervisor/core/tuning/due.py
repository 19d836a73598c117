"""Whether a training is tuned by itself now: once for its command on this machine, after it has run undisturbed."""

from __future__ import annotations

from supervisor.core.job import DesiredState, Job, Phase
from supervisor.core.moments import Moment

TRIES = 2
"""How often a tune begins by itself that does not come to its end: what was tried may be what ended the training."""


def is_due(job: Job, now: Moment, after_s: float) -> bool:
    """Whether a training has made steps for `after_s` since its launch.

    Warnings do not keep it from being tuned: one that waits for its data has one.
    """
    attempt = job.attempt
    if job.phase is not Phase.RUNNING or job.desired_state is not DesiredState.RUN or job.shutting_down:
        return False
    if attempt is None or attempt.first_step_at is None:
        return False
    return now.seconds_since(attempt.first_step_at) >= after_s


def is_settled(problem: str | None, tries: int) -> bool:
    """Whether a tune that ended as `problem` says is not begun again by itself; None: it came to its end."""
    return problem is None or tries >= TRIES
