"""Resumed loss: the first losses after a resume leave the old curve. It asks nothing of a training begun anew."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from supervisor.core.checkpoints.loss_curve import curve_of
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.remedies import causes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedLoss:
    """The first losses after a resume lie far from the losses made around the checkpoint's step.

    They are compared once there are `window_steps` of them, and again at two, three and four times as many: what noise
    hides in few losses is seen in more. Then the generation that was resumed from is no good, whatever its proof said:
    the trouble began with it, so the next resume takes the one before. The flag stays as long as the attempt has made
    no more than four windows: a rule may be asked late.
    """

    name: ClassVar[str] = "resumed_loss"
    group: ClassVar[Group] = "losses"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: bool = True
    window_steps: int = 30

    def check(self, history: History) -> RedFlag | None:
        """Compare all losses of the windows that are full."""
        resumed = history.resumed
        if resumed is None or resumed.curve is None or self._blind(history) is not None:
            return None
        now = curve_of(self._losses(history), least=self.window_steps)
        if now is None or not resumed.curve.left_by(now):
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"the first {now.losses} losses after the resume do not continue the old curve: median "
            f"{now.median:.4g}, around step {resumed.step} it was {resumed.curve.median:.4g} "
            f"({resumed.curve.low:.4g} to {resumed.curve.high:.4g})",
            since=history.launched_at,
            since_step=resumed.step,
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how many of the losses that it takes are there."""
        what, resumed = "first losses after the resume, against the old curve", history.resumed
        why = self._blind(history)
        if why is not None or resumed is None or resumed.curve is None:
            return unwatched(self.name, what, why or "there is no old curve")
        losses = self._losses(history)
        now = curve_of(losses, least=self.window_steps)
        return (
            Gauge(
                rule=self.name,
                what=what,
                unit="steps",
                now=min(len(losses), self.window_steps),
                limit=self.window_steps,
                lacks=None if now is not None and resumed.curve.left_by(now) else "that they leave it",
                severity=Severity.acting(act=self.act),
            ),
        )

    def _losses(self, history: History) -> list[float | None]:
        full = len(history.steps) // self.window_steps * self.window_steps
        return [step.loss for step in islice(history.steps, min(max(full, self.window_steps), 4 * self.window_steps))]

    def _blind(self, history: History) -> str | None:
        """Return why nothing is compared; None where it is."""
        if history.resumed is None or history.resumed.curve is None:
            return "it was not resumed, or no old losses are known"
        if not history.steps:
            return "no step was made yet"
        if history.steps[-1].step - history.steps[0].step >= 4 * self.window_steps:
            return "it went on as it should"
        return None
