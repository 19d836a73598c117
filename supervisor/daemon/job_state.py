"""What the deciding thread holds about one job, and the history that it begins for each attempt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from supervisor.core import events as ev
from supervisor.core.attempt.silences import Silences
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.reports.expectations import Expectation
from supervisor.core.rules import Rule


@dataclass(slots=True, kw_only=True)
class JobState:
    """All that the loop holds about one job."""

    job: Job
    rules: tuple[Rule, ...]
    history: History | None = None
    gpus_used: tuple[str, ...] = ()
    disks: frozenset[str] | None = None
    """The paths by which the disks are read that it writes to; None: all."""
    held: str | None = None
    """Why its next attempt is not launched for now."""
    expected: Expectation = field(default_factory=Expectation)
    agent_offset: int = 0
    """Offset up to which the agent log is in the record."""
    setting: str | None = None
    """The set-up whose limits are learned; None before the training reported its plan."""
    learned_kept_at: Moment | None = None
    searching: bool = False
    standby: str | None = None
    """State of the standby interpreter for the next attempt: "importing" or "ready"."""
    degraded: dict[str, ev.SupervisionChanged] = field(default_factory=dict)
    """The parts of its supervision that failed, by name."""
    switched_off: set[str] = field(default_factory=set)
    """Rules that raised in this attempt."""
    passed: set[tuple[str, str, int | None]] = field(default_factory=set)
    """Events that are skipped: the part that cannot process them, their kind and offset."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each part failed."""
    search_not_before: Moment | None = None

    def forget_failures(self) -> None:
        """Forget what failed for the previous attempt; problems that do not depend on an attempt stay."""
        self.degraded = {
            place: supervision_changed
            for place, supervision_changed in self.degraded.items()
            if supervision_changed.persistent
        }
        self.switched_off, self.passed, self.faults = set(), set(), {}


def begin_history(job_state: JobState, now: Moment, launched_at: Moment) -> History:
    """Return an empty history of an attempt, on the GPU that a remedy moved it to or on none."""
    job = job_state.job
    gpus_used = job_state.gpus_used if job.gpu is None else (job.gpu,)
    device = "cpu" if job.on_cpu else None
    attempt = job.attempt
    return History(
        now=now,
        launched_at=launched_at,
        gpus_used=gpus_used,
        disks=job_state.disks,
        device=device,
        resumed=attempt.resumed if attempt is not None else None,
        silences=Silences(steps=job.course.list_silent_steps()),
        measured=attempt is not None and attempt.order is not None,
    )


def seed_history(job_state: JobState, records: Iterable[StepRecord], now: Moment) -> None:
    """Give a re-adopted attempt the history that the daemon before this one had."""
    job = job_state.job
    if job.attempt is None:
        return
    history = begin_history(job_state, now, job.attempt.launched_at)
    past = tuple(records)
    if past:
        history.add(ev.StepsMade(at=now, job=job.name, attempt=job.attempt.number, records=past))
    history.first_step_at = job.attempt.first_step_at or history.first_step_at
    history.last_step_at = job.attempt.last_step_at or history.last_step_at
    history.scale, history.first_step = job.attempt.scale, job.attempt.first_step
    # Steps made while no daemon ran are not read yet: their absence is no evidence until then.
    history.files_read.looked_at = history.last_step_at or job.attempt.launched_at
    job_state.history = history
