"""Best metric: a validation better than all before it in this attempt; severity info."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, beyond, unwatched
from supervisor.core.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class BestMetric:
    """The newest epoch's figure of merit is `min_gain_fraction` above the best one before."""

    name: ClassVar[str] = "best_metric"
    group: ClassVar[Group] = "losses"
    enabled: bool = True
    min_gain_fraction: float = 0.01

    def check(self, history: History) -> RedFlag | None:
        """Return the newest epoch where it is the best."""
        merits = _merits(history)
        if merits is None:
            return None
        epochs, (newest, best) = history.told.epochs, merits
        if not beyond(newest, self._bound(best), strict=True):
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.INFO,
            at=history.now,
            message=f"epoch {epochs[-1].epoch + 1} is the best so far: {newest:.4g}, {best:.4g} before",
            can_save=True,
            subject=f"epoch {epochs[-1].epoch + 1}",
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return the newest figure of merit against what would be the best."""
        what, merits = "figure of merit of the newest epoch", _merits(history)
        if merits is None:
            return unwatched(self.name, what, "fewer than two epochs reported one")
        newest, best = merits
        limit = self._bound(best)
        return (Gauge(rule=self.name, what=what, now=newest, limit=limit, strict=True, severity=Severity.INFO),)

    def _bound(self, best: float) -> float:
        return best + self.min_gain_fraction * abs(best)


def _merits(history: History) -> tuple[float, float] | None:
    """Return the newest epoch's figure of merit and the best before it; None where either was not reported."""
    epochs = history.told.epochs
    newest = epochs[-1].merit if epochs else None
    earlier = [value for epoch_end in list(epochs)[:-1] if (value := epoch_end.merit) is not None]
    return None if newest is None or not earlier else (newest, max(earlier))
