"""Best metric: a validation better than all before it in this attempt. Good news, and nothing is done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class BestMetric:
    """The newest epoch's figure of merit is `min_gain_fraction` above the best one before; `act` changes nothing."""

    name: ClassVar[str] = "best_metric"
    enabled: bool = True
    act: Act = False
    min_gain_fraction: float = 0.01

    def check(self, history: History) -> RedFlag | None:
        """Return the newest epoch where it is the best."""
        epochs = history.told.epochs
        if len(epochs) < 2:
            return None
        newest = epochs[-1].merit
        earlier = [value for one in list(epochs)[:-1] if (value := one.merit) is not None]
        if newest is None or not earlier or not newest > max(earlier) + self.min_gain_fraction * abs(max(earlier)):
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.INFO,
            at=history.now,
            message=f"epoch {epochs[-1].epoch + 1} is the best so far: {newest:.4g}, {max(earlier):.4g} before",
            can_save=True,
            subject=f"epoch {epochs[-1].epoch + 1}",
        )
