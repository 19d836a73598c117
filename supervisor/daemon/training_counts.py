"""Counts of each training since the daemon started, for metrics: steps, restarts, flags, and time by its use.

Called after each turn in the deciding thread. They only grow: what `account` calls lost in hindsight is counted as
`again` while it is made a second time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.core import events as ev
from supervisor.core.foreign_values import as_float
from supervisor.core.job import ENDED, Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage
from supervisor.core.scale import Scale
from supervisor.core.stats.histogram import Histogram
from supervisor.daemon.job_state import JobState
from supervisor.metrics.compose import UNKNOWN_CAUSE

AWAY_S = 10.0
"""Between two ticks: the daemon did not run in between."""
SNAPSHOT_LIMITS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SNAPSHOT_MAX_S = 86_400.0
"""What a training reports beyond that is no time of a snapshot."""
_STAGES = {
    Stage.SETUP: "setup",
    Stage.WARMUP: "compile",
    Stage.COMPILE: "compile",
    Stage.VALIDATE: "validate",
    Stage.CHECKPOINT: "checkpoint",
    Stage.DATA_WAIT: "data_wait",
}


@dataclass(slots=True)
class TrainingCounts:
    """Of one training."""

    steps: int = 0
    steps_redone: int = 0
    non_finite_steps: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    restarts: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    snapshots: Histogram = field(default_factory=lambda: Histogram(*SNAPSHOT_LIMITS_S))
    """How long they took, from the step at which they began until they were on the disk."""
    furthest_step: int | None = None
    """Of the training, by any attempt."""
    again: bool = False
    """Whether the newest step was one that an earlier attempt had made."""
    data_wait_s: float = 0.0
    """Reported by steps and not counted in `seconds` yet; negative: counted before it was reported."""
    seen: Job | None = None
    """The job after the last turn."""

    def take_steps(self, job: Job, event: ev.StepsMade) -> None:
        """Count steps."""
        self.steps += len(event.records)
        attempt = job.attempt
        comparable = attempt is not None and attempt.number == event.attempt and attempt.scale is Scale.TRAINING
        for record in event.records:
            values = (record.loss, record.grad_norm)
            self.non_finite_steps += any(value is not None and not math.isfinite(value) for value in values)
            if record.data_wait_s is not None and 0 < record.data_wait_s < math.inf:
                self.data_wait_s += record.data_wait_s
            if comparable:
                self.again = self.furthest_step is not None and record.step <= self.furthest_step
                self.steps_redone += self.again
                self.furthest_step = max(record.step, self.furthest_step or 0)

    def take_report(self, event: ev.AgentReported) -> None:
        """Count a snapshot."""
        if event.agent_event is not ev.AgentEvent.CHECKPOINT_SAVED or event.facts.get("kind") != "snapshot":
            return
        parts = [as_float(event.facts.get(name), 0.0, SNAPSHOT_MAX_S) for name in ("stall_s", "write_s")]
        known = [seconds for seconds in parts if seconds is not None]
        if known and event.rank in (None, 0):
            self.snapshots.observe(sum(known))

    def compare(self, job: Job) -> None:
        """Count the restarts and flags that came since the last turn."""
        before, self.seen = self.seen, job
        if before is None or before is job:
            return
        if before.open_flags is not job.open_flags:
            self.flags.update(rule for rule, _, _ in job.open_flags - before.open_flags)
        if job.ledger.total > before.ledger.total:
            known = dict(before.ledger.causes)
            grown = [cause for cause, count in job.ledger.causes if count > known.get(cause, 0)]
            self.restarts[grown[0] if grown else UNKNOWN_CAUSE] += job.ledger.total - before.ledger.total
        if job.number != before.number:
            self.again, self.data_wait_s = False, 0.0
        if job.phase is Phase.PENDING:
            self.furthest_step = None

    def spend(self, job_state: JobState, elapsed_s: float) -> None:
        """Add the time since the last tick to what it was spent on."""
        use = "unseen" if elapsed_s > AWAY_S else _find_use(job_state, again=self.again)
        waited_s = 0.0
        if use == "data_wait":
            self.data_wait_s -= elapsed_s
        elif use in ("train", "again"):
            waited_s = min(max(0.0, self.data_wait_s), elapsed_s)
            self.data_wait_s -= waited_s
        self.seconds[use] += elapsed_s - waited_s
        if waited_s:
            self.seconds["data_wait"] += waited_s


class Counts:
    """Of every training that is configured."""

    def __init__(self, job_states: Mapping[str, JobState]) -> None:
        self._job_states = job_states
        self._of: dict[str, TrainingCounts] = {}
        self._ticked_at: Moment | None = None

    def begin(self) -> None:
        """Take the trainings as they are: what was before is not counted."""
        for name, job_state in self._job_states.items():
            if name not in self._of:
                self._of[name] = TrainingCounts(furthest_step=job_state.job.ledger.furthest_step, seen=job_state.job)

    def of(self, name: str) -> TrainingCounts:
        """Return the counts of one training."""
        return self._of.get(name) or TrainingCounts()

    def take(self, event: ev.Event, now: Moment) -> None:
        """Count what an event changed."""
        self.begin()
        named = getattr(event, "job", None)
        for name in self._job_states if named is None else (named,):
            if (job_state := self._job_states.get(name)) is not None:
                if isinstance(event, ev.StepsMade) and event.rank == 0:
                    self._of[name].take_steps(job_state.job, event)
                if isinstance(event, ev.AgentReported):
                    self._of[name].take_report(event)
                self._of[name].compare(job_state.job)
        if isinstance(event, ev.Tick):
            self._spend_time(now)

    def _spend_time(self, now: Moment) -> None:
        last, self._ticked_at = self._ticked_at, now
        if last is not None and (elapsed_s := now.seconds_since(last)) > 0:
            for name, job_state in self._job_states.items():
                self._of[name].spend(job_state, elapsed_s)
        for name in self._of.keys() - self._job_states.keys():
            del self._of[name]


def _find_use(job_state: JobState, *, again: bool) -> str:
    job, history = job_state.job, job_state.history
    if job.phase in ENDED or job.phase is Phase.PENDING:
        return "waiting"
    if job.phase not in (Phase.STARTING, Phase.RUNNING):
        return "down"
    if history is None or not history.hooked:
        return "unseen"
    stage = history.training_stage
    in_stage = _STAGES.get(stage) if stage is not None else None
    if in_stage is not None:
        return in_stage
    if history.last_step_at is None and history.starting:
        return "setup" if stage is None else "compile"
    return "again" if again else "train"
