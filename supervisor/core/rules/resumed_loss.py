"""Resumed loss: the first losses after a resume leave the old curve."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar

from supervisor.core.checkpoints.loss_curve import Curve, curve_of
from supervisor.core.flags import Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.remedies import causes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedLoss:
    """The first losses after a resume lie far from the losses made around the checkpoint's step.

    They are compared once there are `window_steps` of them, and again at two, three and four times as many, since more
    losses show what noise hides in few. The generation that was resumed from is then unusable, whatever its proof:
    the next resume takes the one before. Of more than four windows the first four are compared: a reader that was held
    up hands them over all at once.
    """

    name: ClassVar[str] = "resumed_loss"
    group: ClassVar[Group] = "losses"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: bool = True
    window_steps: int = 30

    def may_flag(self, history: History) -> bool:
        """Whether the attempt was resumed and its first losses are still compared."""
        known = history.resumed is not None and history.resumed.curve is not None
        return known and _why_no_losses(history) is None

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how many of the losses that it takes are there."""
        what, resumed = "first losses after the resume, against the old curve", history.resumed
        if resumed is None or resumed.curve is None:
            return not_applicable(what, "it was not resumed, or no old losses are known")
        if (why := _why_no_losses(history)) is not None:
            return not_applicable(what, why)
        losses, begun = self._list_losses(history), history.launched_at
        now = curve_of(losses, least=self.window_steps)
        left = now is not None and resumed.curve.left_by(now)
        if not left and history.steps[-1].step - history.steps[0].step >= 4 * self.window_steps:
            return not_applicable(what, "it went on as it should")
        return (
            Gauge(
                what=what,
                unit="steps",
                now=min(len(losses), self.window_steps),
                limit=self.window_steps,
                lacks=None if left else "that they leave it",
                severity=Severity.acting(act=self.act),
                observe=None if now is None else partial(_observe_curve, resumed.step, resumed.curve, now, begun),
            ),
        )

    def _list_losses(self, history: History) -> list[float | None]:
        full = len(history.steps) // self.window_steps * self.window_steps
        return [step.loss for step in islice(history.steps, min(max(full, self.window_steps), 4 * self.window_steps))]


def _why_no_losses(history: History) -> str | None:
    """Return why its first losses are not known; None where they are."""
    if not history.steps:
        return "no step was made yet"
    if history.first_step not in (None, history.steps[0].step):
        return "its first losses are not kept any more"
    return None


def _observe_curve(step: int | None, old: Curve, now: Curve, launched_at: Moment) -> Observation:
    return Observation(
        message=f"the first {now.losses} losses after the resume do not continue the old curve: median "
        f"{now.median:.4g}, around step {step} it was {old.median:.4g} ({old.low:.4g} to {old.high:.4g})",
        since=launched_at,
        since_step=step,
    )
