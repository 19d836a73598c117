"""Best metric: a validation better than all before it in this attempt. Good news, and nothing is done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.watched import Group, Watched, beyond, unwatched


@dataclass(frozen=True, slots=True, kw_only=True)
class BestMetric:
    """The newest epoch's figure of merit is `min_gain_fraction` above the best one before; `act` changes nothing."""

    name: ClassVar[str] = "best_metric"
    group: ClassVar[Group] = "losses"
    enabled: bool = True
    act: Act = False
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

    def watch(self, history: History) -> tuple[Watched, ...]:
        """Return the newest figure of merit against what would be the best."""
        what, merits = "figure of merit of the newest epoch", _merits(history)
        if merits is None:
            return unwatched(self.name, what, "fewer than two epochs told one")
        newest, best = merits
        limit = self._bound(best)
        return (Watched(rule=self.name, what=what, now=newest, limit=limit, strict=True, severity=Severity.INFO),)

    def _bound(self, best: float) -> float:
        return best + self.min_gain_fraction * abs(best)


def _merits(history: History) -> tuple[float, float] | None:
    """Return the newest epoch's figure of merit and the best before it; None where one is not told."""
    epochs = history.told.epochs
    newest = epochs[-1].merit if epochs else None
    earlier = [value for one in list(epochs)[:-1] if (value := one.merit) is not None]
    return None if newest is None or not earlier else (newest, max(earlier))
