"""Best metric: a validation better than all before it in this attempt; severity info."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Severity
from supervisor.core.gauge import Gauge, Group, Observation, beyond, not_applicable
from supervisor.core.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class BestMetric:
    """The newest epoch's figure of merit is `min_gain_fraction` above the best one before."""

    name: ClassVar[str] = "best_metric"
    group: ClassVar[Group] = "losses"
    enabled: bool = True
    min_gain_fraction: float = 0.01

    def may_flag(self, history: History) -> bool:
        """Whether the newest epoch's figure of merit is above the limit."""
        merits = _read_merits(history)
        return merits is not None and beyond(merits[0], self._limit_merit(merits[1]), strict=True)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return the newest figure of merit against what would be the best."""
        what, merits = "figure of merit of the newest epoch", _read_merits(history)
        if merits is None:
            return not_applicable(what, "fewer than two epochs reported one")
        newest, best = merits
        return (
            Gauge(
                what=what,
                now=newest,
                limit=self._limit_merit(best),
                strict=True,
                severity=Severity.INFO,
                observe=partial(_observe_best, history.reports.epochs[-1].epoch + 1, newest, best),
            ),
        )

    def _limit_merit(self, best: float) -> float:
        return best + self.min_gain_fraction * abs(best)


def _observe_best(epoch: int, newest: float, best: float) -> Observation:
    return Observation(
        message=f"epoch {epoch} is the best so far: {newest:.4g}, {best:.4g} before",
        can_save=True,
        subject=f"epoch {epoch}",
    )


def _read_merits(history: History) -> tuple[float, float] | None:
    """Return the newest epoch's figure of merit and the best before it; None where either was not reported."""
    epochs = history.reports.epochs
    newest = epochs[-1].merit if epochs else None
    earlier = [value for epoch_end in list(epochs)[:-1] if (value := epoch_end.merit) is not None]
    return None if newest is None or not earlier else (newest, max(earlier))
