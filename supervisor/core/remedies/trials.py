"""The remedies that a job was given, and their outcomes.

An episode of a cause lasts from the last remedy that helped against it, or the last start by a person; within it a
remedy that failed is not tried again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile

from supervisor.core.moments import Moment
from supervisor.core.remedies.causes import ADDING_UP, STALL, STALL_DATA
from supervisor.core.remedies.spec import InForce
from supervisor.core.remedies.table import BY_NAME

TRIALS_KEPT = 64


class Outcome(Enum):
    """The outcome of a trial."""

    OPEN = "open"
    HELPED = "helped"
    """The training got well past the place of the fault, or to its end."""
    FAILED = "failed"
    """The same cause came back before that."""
    SKIPPED = "skipped"
    """Its attempt was never launched: the environment failed its proof."""
    UNCLEAR = "unclear"
    """Something else happened first, or the agent never reported the remedy as applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One remedy given to one job against one cause."""

    attempt: int
    """The first attempt that had it."""
    at: Moment
    cause: str
    remedy: str
    step: int | None = None
    """Where in the training the fault occurred that it is tried against; None where that is not known."""
    fault: str | None = None
    """Class of that fault; None where it has none, or was not recorded."""
    environment: str | None = None
    """Name of the environment that was tried."""
    start_failure: str | None = None
    """What identifies the end before the first step that it is tried against."""
    at_start: bool = False
    """Whether that was the end of an attempt without a step."""
    times: int | None = None
    """How often its factor is applied at once; None: once."""
    reason: str = ""
    """Why this one, for a person."""
    outcome: Outcome = Outcome.OPEN
    settled_at: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All that was tried for one job; changed by its methods, which return another."""

    trials: tuple[Trial, ...] = ()
    in_force: tuple[InForce, ...] = ()
    returns: int = 0
    """Returns to a lost GPU since a person last started the job."""
    forgiven_at_attempt: int = 0
    """Trials up to this attempt count no more: a person has started the job since."""

    @property
    def open_trial(self) -> Trial | None:
        """The trial of which nothing is known yet."""
        return self.trials[-1] if self.trials and self.trials[-1].outcome is Outcome.OPEN else None

    @property
    def gpu(self) -> str | None:
        """The GPU that a remedy moved the job to."""
        return next((remedy.gpu for remedy in reversed(self.in_force) if remedy.remedy == "other_gpu"), None)

    @property
    def environment(self) -> str | None:
        """The environment that a remedy moved the job to."""
        held = (remedy.environment for remedy in reversed(self.in_force) if remedy.remedy == "other_environment")
        return next(held, None)

    def has(self, remedy: str) -> bool:
        """Whether it is in force."""
        return any(item.remedy == remedy for item in self.in_force)

    def episode(self, cause: str) -> tuple[Trial, ...]:
        """Return the trials against a cause since one helped, or since a person started the job."""
        mine: list[Trial] = []
        for trial in reversed(self.trials):
            if trial.attempt <= self.forgiven_at_attempt or (trial.cause == cause and trial.outcome is Outcome.HELPED):
                break
            if trial.cause == cause:
                mine.append(trial)
        return tuple(reversed(mine))

    def failed(self, cause: str, at: Moment) -> Course:
        """Return it after an attempt ended by `cause`: an open trial has failed, or remains unclear."""
        trial = self.open_trial
        if trial is None:
            return self
        again = trial.cause == cause
        course = self._settle_trial(Outcome.FAILED if again and self._was_made(trial) else Outcome.UNCLEAR, at)
        wrong = again and cause not in ADDING_UP
        return course.without(trial.remedy, attempt=trial.attempt) if wrong else course

    def _was_made(self, trial: Trial) -> bool:
        """Whether a remedy can be judged: one that the agent applies but has not reported was not applied."""
        if trial.remedy not in BY_NAME or not BY_NAME[trial.remedy].reported:
            return True
        return any(remedy.applied is not None for remedy in self.in_force if remedy.attempt == trial.attempt)

    def list_silent_steps(self) -> tuple[int, ...]:
        """Return the steps after which attempts were stopped for silence, since a person started the job."""
        silent = (trial.step for trial in self._unforgiven() if trial.cause in (STALL, STALL_DATA))
        return tuple(step for step in silent if step is not None)

    def again_at_start(self, attempt: int, start_failure: str | None) -> Trial | None:
        """Return the retry that `attempt` is, where what it was tried against has just come back before any step."""
        trial = self.trials[-1] if self.trials else None
        if trial is None or start_failure is None or trial.attempt != attempt:
            return None
        return trial if trial.start_failure == start_failure else None

    def list_at_start(self, attempt: int) -> tuple[Trial, ...]:
        """Return the retries in a row, up to `attempt`, that were tried against an end without a step."""
        if not self.trials or self.trials[-1].attempt != attempt:
            return ()
        return tuple(takewhile(lambda trial: trial.at_start, reversed(self._unforgiven())))

    def count_same_starts(self, start_failure: str | None) -> int:
        """Return how many retries in a row were tried against this end before the first step."""
        others = (trial.start_failure != start_failure for trial in reversed(self._unforgiven()))
        return next((number for number, other in enumerate(others) if other), len(self._unforgiven()))

    def _unforgiven(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.attempt > self.forgiven_at_attempt)

    def helped(self, at: Moment) -> Course:
        """Return it once the training is past the fault."""
        return self._settle_trial(Outcome.HELPED, at)

    def unclear(self, at: Moment) -> Course:
        """Return it once the outcome can no longer be determined."""
        return self._settle_trial(Outcome.UNCLEAR, at)

    def never_began(self, at: Moment, why: str) -> Course:
        """Return it where the attempt of the open trial is not launched: nothing was learned, and it is taken back."""
        trial = self.open_trial
        if trial is None:
            return self
        skipped = replace(self, trials=(*self.trials[:-1], replace(trial, reason=f"{trial.reason}; skipped: {why}")))
        return skipped._settle_trial(Outcome.SKIPPED, at).without(trial.remedy, attempt=trial.attempt)

    def _settle_trial(self, outcome: Outcome, at: Moment) -> Course:
        trial = self.open_trial
        if trial is None:
            return self
        return replace(self, trials=(*self.trials[:-1], replace(trial, outcome=outcome, settled_at=at)))

    def taken(self, trial: Trial, gpu: str | None) -> Course:
        """Return it with one more remedy."""
        trials = (*self.trials, trial)[-TRIALS_KEPT:]
        if trial.remedy in BY_NAME and not BY_NAME[trial.remedy].lasts:
            return replace(self, trials=trials)
        remedy = InForce(
            remedy=trial.remedy,
            cause=trial.cause,
            attempt=trial.attempt,
            step=trial.step,
            gpu=gpu,
            environment=trial.environment,
            times=trial.times,
        )
        return replace(self, trials=trials, in_force=(*self.in_force, remedy))

    def without(self, remedy: str, *, attempt: int | None = None) -> Course:
        """Return it with a remedy taken back, only that of one attempt where that is named."""
        kept = tuple(
            item for item in self.in_force if item.remedy != remedy or (attempt is not None and item.attempt != attempt)
        )
        return replace(self, in_force=kept)

    def confirmed(self, remedies: Iterable[str], applied: str) -> Course:
        """Return it with the remedies in force that the agent reported as applied."""
        named = frozenset(remedies)

        def mark_applied(remedy: InForce) -> InForce:
            if remedy.remedy not in named or applied in (remedy.applied or ""):
                return remedy
            return replace(remedy, applied=f"{remedy.applied}, {applied}"[:300] if remedy.applied else applied[:300])

        return replace(self, in_force=tuple(map(mark_applied, self.in_force)))

    def launched(self) -> Course:
        """Return it for a new attempt, of which the agent has reported nothing yet."""
        return replace(self, in_force=tuple(replace(remedy, applied=None) for remedy in self.in_force))

    def forgiven(self, attempt: int) -> Course:
        """Return it after a person started the job again: failed remedies may be tried again, those in force stay."""
        return replace(self, forgiven_at_attempt=attempt, returns=0)

    def rescaled(self, factor: float) -> Course:
        """Return it with steps renumbered: an epoch has `factor` times as many of them now."""
        trial = self.open_trial
        if trial is None or trial.step is None:
            return self
        return replace(self, trials=(*self.trials[:-1], replace(trial, step=round(trial.step * factor))))
