"""The triage that is made before a retry: whether one is due, its progress, and what its finding changes.

A triage that finds nothing changes nothing: the retry is the one that would have been made without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.flags import RedFlag
from supervisor.core.moments import Moment
from supervisor.core.remedies.causes import HARDWARE, NON_FINITE
from supervisor.core.scale import on_training, same_place
from supervisor.core.triage.finding import Finding, LookedFor

LOOKED_FOR: dict[str, LookedFor] = {"non_finite_loss": "loss", "non_finite_grad": "gradients"}
"""By rule: for any other a replay cannot show whether the fault was reproduced."""
UNWANTED = "it was cancelled by a start of the job"
OVERDUE_S = 30.0
"""A replay that is still there so long after its limit is called unkillable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageState:
    """The triage of one fault, or the last one that was made."""

    attempt: int
    at: Moment
    """When it was decided."""
    flag: RedFlag
    cause: str
    step: int
    looked_for: LookedFor
    resume_from: Checkpoint | None = None
    began_at: Moment | None = None
    """When its replays began; None while the state to replay from is looked for."""
    ended_at: Moment | None = None
    finding: Finding | None = None
    unwanted: bool = False
    """Whether a start was requested at once."""

    @property
    def replaying(self) -> bool:
        """Whether a process of it may be running."""
        return self.began_at is not None and self.ended_at is None

    def overdue(self, now: Moment, limit_s: float) -> bool:
        """Whether its replays exceed their limit."""
        return self.began_at is not None and now.seconds_since(self.began_at) > limit_s + OVERDUE_S


def looked_for(flag: RedFlag, cause: str) -> LookedFor | None:
    """Return what a replay has to look for, None where it could not show whether the fault was reproduced."""
    if cause != NON_FINITE or flag.since_step is None:
        return None
    return LOOKED_FOR.get(flag.rule)


def find_earlier_finding(last: TriageState | None, step: int, tolerance: int) -> Finding | None:
    """Return the finding about the same step, where there is one: it is not examined twice."""
    if last is None or last.finding is None or last.finding.verdict in ("unknown", "hardware"):
        return None  # a GPU that computed wrong results is not tied to a step
    return last.finding if same_place(on_training(last.step), on_training(step), tolerance) else None


def cause_after_triage(cause: str, finding: Finding | None) -> str:
    """Return the cause that remedies are chosen by, once a triage has a finding."""
    return HARDWARE if finding is not None and finding.verdict == "hardware" else cause
