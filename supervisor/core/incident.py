"""An incident: a critical flag, what was done about it, and what it cost; a record, no judgement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.checkpoints import Checkpoint
from supervisor.core.flags import RedFlag
from supervisor.core.moments import Moment
from supervisor.core.triage import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One trouble from the flag that opened it to the first new step, or to giving up."""

    id: str
    """`JOB-ATTEMPT`: an attempt ends in at most one incident."""
    job: str
    attempt: int
    flag: RedFlag
    decision: str
    """Name of the decision that came of it: stop, kill, retry, give_up."""
    outcome: str = "open"
    """open, resumed, restarted, gave_up, stopped, overtaken"""
    last_step: int | None = None
    last_step_at: Moment | None = None
    resumed_from: Checkpoint | None = None
    resumed_at: Moment | None = None
    lost_steps: int | None = None
    """Steps made before the trouble that had to be made again."""
    downtime_s: float | None = None
    """From the last step before to the first step after."""
    evidence: str | None = None
    reason: str | None = None
    """Why it was given up."""
    cause: str | None = None
    """What remedies were chosen by."""
    remedy: str | None = None
    """What the next attempt was given."""
    remedy_why: str | None = None
    finding: Finding | None = None
    """What a triage said, where the daemon made one by itself."""

    def relaunched(self, checkpoint: Checkpoint | None) -> Incident:
        """Return it once the next attempt was started from `checkpoint`, or from the beginning."""
        outcome = "restarted" if checkpoint is None else "resumed"
        done = 0 if checkpoint is None else checkpoint.step
        lost = None if self.last_step is None or done is None else max(0, self.last_step - done)
        return replace(self, outcome=outcome, resumed_from=checkpoint, lost_steps=lost)

    def stepping_again(self, at: Moment) -> Incident:
        """Return it, closed, once the next attempt made its first step."""
        began = self.last_step_at or self.flag.at
        return replace(self, resumed_at=at, downtime_s=max(0.0, at.unix_s - began.unix_s))

    def overtaken(self) -> Incident:
        """Return it, closed: the attempt that was to go on ended before its first step, in an incident of its own."""
        return replace(self, outcome="overtaken")

    @property
    def closed(self) -> bool:
        """Whether nothing more will change in it."""
        return self.resumed_at is not None or self.outcome in ("gave_up", "stopped", "overtaken")
