"""Resumed loss: the first losses after a resume leave the old curve. It asks nothing of a training begun anew."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from supervisor.core.curve import curve_of
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedLoss:
    """The first `window_steps` losses after a resume lie far from the losses made around the checkpoint's step.

    Then the generation that was resumed from is no good, whatever its proof said: the trouble began with it, so the
    next resume takes the one before. The flag stays as long as the attempt has made no more than four windows: a rule
    may be asked late.
    """

    name: ClassVar[str] = "resumed_loss"
    enabled: bool = True
    act: bool = True
    window_steps: int = 30

    def check(self, history: History) -> RedFlag | None:
        """Compare once the window is full."""
        resumed = history.resumed
        if resumed is None or resumed.curve is None or not history.steps:
            return None
        first = history.steps[0].step
        if history.steps[-1].step - first >= 4 * self.window_steps:
            return None
        losses = [one.loss for one in islice(history.steps, self.window_steps)]
        now = curve_of(losses, least=self.window_steps)
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
