"""An incident: a critical flag, what was done about it, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.flags import RedFlag
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus
from supervisor.core.scale import Place, Scale, lost_steps, on_training
from supervisor.core.triage.finding import Finding

CRASH = "crash"
"""Name of the rule of an end that was not asked for, which alone looks for steps in the output as well."""
RELAUNCHED = frozenset({"resumed", "checkpoint_ignored"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault from the flag that opened it to the first new step, or to giving up."""

    id: str
    """`JOB-ATTEMPT`: an attempt ends in at most one incident."""
    job: str
    attempt: int
    flag: RedFlag
    decision: str
    """Name of the decision on it: stop, kill, retry, give_up."""
    outcome: str = "open"
    """open, resumed, restarted, checkpoint_ignored (in spite of a checkpoint), resumed_later (by a later one of several
    trainings of its program), gave_up, stopped, overtaken"""
    confirmed: bool | None = None
    """Whether the attempt after it is known to have gone on from `resumed_from`; None before its first step."""
    last_step: int | None = None
    scale: Scale = Scale.TRAINING
    """What `last_step` counts."""
    last_step_at: Moment | None = None
    resumed_from: Checkpoint | None = None
    loads_itself: bool = False
    """Whether the attempt after it was given no checkpoint and has to load one by itself."""
    set_aside: tuple[str, ...] = ()
    """Checkpoints newer than `resumed_from` that were moved out of the program's own search."""
    went_on_step: int | None = None
    """The step that it went on from without a checkpoint, or from another than it was given, 0 for the beginning; None
    where its steps do not show it."""
    own_file: str | None = None
    """The file that the attempt after it went on from in place of `resumed_from`, by its own choice."""
    resumed_at: Moment | None = None
    lost_steps: int | None = None
    """Steps made before the fault that had to be redone."""
    downtime_s: float | None = None
    """From the last step before to the first step after."""
    evidence: str | None = None
    reason: str | None = None
    """Why it was given up."""
    cause: str | None = None
    """The cause that remedies were chosen by."""
    remedy: str | None = None
    """The remedy of the next attempt."""
    remedy_why: str | None = None
    finding: Finding | None = None
    """The finding of the triage, where the daemon made one."""
    unmended: str | None = None
    """How the attempt ended since which no step was made, where this one made none."""
    unmended_since: Moment | None = None
    """When the fault in that attempt began."""

    def relaunched(self, checkpoint: Checkpoint | None, *, loads_itself: bool = False) -> Incident:
        """Return it once the next attempt was started from `checkpoint`, from the beginning or from its own file."""
        outcome = "restarted" if checkpoint is None else "resumed"
        done = Place(0) if checkpoint is None else on_training(checkpoint.step)
        lost = None if loads_itself else lost_steps(self._last_place, done)
        return replace(self, outcome=outcome, resumed_from=checkpoint, loads_itself=loads_itself, lost_steps=lost)

    @property
    def last_training_step(self) -> int | None:
        """The last step before the fault, as the training counts it; None where that is not known."""
        return None if self._last_place is None else self._last_place.on_training

    @property
    def _last_place(self) -> Place | None:
        if self.last_step is None:
            return None
        return Place(self.last_step, self.attempt if self.scale is Scale.ATTEMPT else None)

    def stepping_again(
        self,
        at: Moment,
        went_on_from: Place | None = None,
        *,
        went_on: bool | None = None,
        own_file: str | None = None,
    ) -> Incident:
        """Return it, closed, once the next attempt made its first step, which shows where it went on from."""
        began = self.last_step_at or self.flag.at
        closed = replace(self, resumed_at=at, downtime_s=max(0.0, at.seconds_since(began)))
        return replace(closed, own_file=own_file).went_on_at(went_on_from, went_on=went_on)

    def went_on_at(self, went_on_from: Place | None, *, went_on: bool | None) -> Incident:
        """Return it with what is known by now of the attempt that went on after it.

        `went_on` False: it was given a checkpoint and restarted from the beginning, so that nothing was resumed.
        """
        outcome, lost = self.outcome, self.lost_steps
        # An attempt that resumed from its checkpoint lost what was computed at its launch.
        if went_on_from is not None or went_on is not True:
            lost = lost_steps(self._last_place, went_on_from)
        if outcome in RELAUNCHED and self.resumed_from is not None:
            outcome = {True: "resumed", False: "checkpoint_ignored", None: outcome}[went_on]
        is_own = outcome == "restarted" or self.own_file is not None
        by_itself = went_on_from.on_training if went_on_from is not None and is_own else None
        return replace(self, outcome=outcome, lost_steps=lost, confirmed=went_on is True, went_on_step=by_itself)

    def resumed_later(self, made_again: int | None) -> Incident:
        """Return it once the checkpoint was loaded after all, by a later one of the trainings that its program makes.

        `made_again`: the steps of those before it, which began at their beginning.
        """
        if self.outcome != "checkpoint_ignored" or self.resumed_from is None:
            return self
        beyond = lost_steps(self._last_place, on_training(self.resumed_from.step))
        lost = self.lost_steps if beyond is None or made_again is None else beyond + made_again
        return replace(self, outcome="resumed_later", lost_steps=lost, confirmed=True)

    def running_since(self, launched_at: Moment) -> Incident:
        """Return it, closed: the attempt launched after it runs, or has finished, without a report of a step."""
        began = self.last_step_at or self.flag.at
        down_s = max(0.0, launched_at.seconds_since(began))
        return replace(self, resumed_at=launched_at, downtime_s=down_s, confirmed=False)

    def overtaken(self) -> Incident:
        """Return it, closed: the attempt that was to go on ended before its first step, in an incident of its own."""
        return replace(self, outcome="overtaken")

    def closed_by(self, flag: RedFlag, launched_at: Moment, ended: ExitStatus | None) -> Incident:
        """Return it, closed by the flag of the attempt that was to go on.

        A program whose steps are not reported may have made many before it crashed: it ran, from where is not known.
        """
        ran = (
            flag.rule == CRASH and not flag.at_start and ended is not None and self.outcome in ("resumed", "restarted")
        )
        return self.running_since(launched_at) if ran else self.overtaken()

    def find_unmended(self, attempt: int) -> tuple[str | None, Moment | None]:
        """Return which attempt ended last after a step, where and by which rule, and since when it had that fault.

        None where no attempt had made a step, or a later one did, up to `attempt`.
        """
        if self.closed or attempt <= self.attempt:
            return None, None
        if self.last_step is None:
            return self.unmended, self.unmended_since
        where = "" if self.last_training_step is None else f" at step {self.last_training_step}"
        return f"attempt {self.attempt} ended{where} ({self.flag.rule})", self.flag.since

    @property
    def closed(self) -> bool:
        """Whether nothing more will change in it."""
        return self.resumed_at is not None or self.outcome in ("gave_up", "stopped", "overtaken")
