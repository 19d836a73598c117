"""Whether a standby interpreter may be kept for a job's next attempt.

It takes memory that the training may need, and some processor time at its start: so it is started only once the
training makes steps, and only while enough memory is available.
"""

from __future__ import annotations

from supervisor.core.job import ENDED, DesiredState, Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import HostReading

AFTER_S = 3.0
"""From an attempt's first step until another process may be started along with it: its start-up is over by then."""
START_FRACTION = 0.25
"""Share of the machine's memory that must be available to start a standby."""
START_BYTES = 2_000_000_000
KEEP_FRACTION = 0.15
"""Available share below which a standby is ended: above the limit of the rule `host_memory` (0.1)."""
ALONE_LIMIT_S = 900.0
"""How long it waits after the end of the previous attempt, even without a daemon: longer than the longest backoff."""


def why_none(job: Job, host: HostReading | None) -> str | None:
    """Return why no standby may exist for a job, including a present one; None where one may."""
    if job.desired_state is DesiredState.STOP or job.shutting_down or job.phase in ENDED:
        return "the job is not to continue"
    left = _available_fraction(host)
    if left is not None and left < KEEP_FRACTION:
        return f"memory is low: {left:.0%} of it available, below {KEEP_FRACTION:.0%}"
    return None


def may_start(job: Job, host: HostReading | None, now: Moment) -> bool:
    """Whether a standby may be started now, for a job that may have one."""
    attempt, left = job.attempt, _available_fraction(host)
    if job.phase is not Phase.RUNNING or attempt is None or attempt.first_step_at is None:
        return False
    if host is None or host.memory_available_bytes is None or left is None:
        return False
    if attempt.order is not None:
        return False  # it is being measured
    if now.seconds_since(attempt.first_step_at) < AFTER_S:
        return False
    return left >= START_FRACTION and host.memory_available_bytes >= START_BYTES


def _available_fraction(host: HostReading | None) -> float | None:
    if host is None or host.memory_available_bytes is None or not host.memory_total_bytes:
        return None
    return host.memory_available_bytes / host.memory_total_bytes
