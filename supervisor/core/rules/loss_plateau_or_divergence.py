"""Loss over epochs: it rises again, or nothing improves any more. Both can be intended: it warns by default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, beyond, not_applicable
from supervisor.core.history import History
from supervisor.core.remedies import causes
from supervisor.core.stats.median import median


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlateauOrDivergence:
    """Mean training losses of `divergence_epochs` epochs in a row at `divergence_factor` times the best one before.

    Written so that NaN trips it. Or `patience_epochs` epochs without a better figure of merit (without one, a lower
    loss) by `min_gain_fraction`: that is a warning and never acts, for it only costs time and power.
    """

    name: ClassVar[str] = "loss_plateau_or_divergence"
    group: ClassVar[Group] = "losses"
    cause: ClassVar[str] = causes.NON_FINITE
    enabled: bool = True
    act: Act = False
    divergence_factor: float = 1.5
    divergence_epochs: int = 3
    patience_epochs: int = 30
    min_gain_fraction: float = 0.001

    def may_flag(self, history: History) -> bool:
        """Whether the newest epochs are above the limit, or none was better for long."""
        if history.over or history.train_ended or not history.losses.epochs:
            return False
        last, best = self._split_means(history)
        if best is not None and beyond(_find_least(last), self._limit_loss(best)):
            return True
        return self._count_without_gain(_list_merits(history)[1]) >= self.patience_epochs

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return where the newest epochs stand against the best one before, and for how long nothing was better."""
        why = history.why_not_stepping() or (None if history.losses.epochs else "no epoch is over yet")
        if why is not None:
            return not_applicable("losses over epochs", why)
        return self._measure_divergence(history), self._measure_plateau(history)

    def _measure_divergence(self, history: History) -> Gauge:
        last, best = self._split_means(history)
        what = f"least mean loss of the last {self.divergence_epochs} epochs, against the best before"
        severity = Severity.acting(act=self.act)
        if best is None:
            why = f"fewer than {self.divergence_epochs + 1} epochs are over"
            return Gauge(what=what, severity=severity, not_watched=why)
        limit = self._limit_loss(best)
        return Gauge(
            what=what,
            now=_find_least(last),
            limit=limit,
            rest=best,
            severity=severity,
            observe=partial(_observe_divergence, last, best, limit),
        )

    def _measure_plateau(self, history: History) -> Gauge:
        name, values = _list_merits(history)
        return Gauge(
            what=f"epochs without a better {name}",
            now=self._count_without_gain(values),
            limit=self.patience_epochs,
            lacks="that the losses no longer fall" if self._is_still_falling(history) else None,
            observe=partial(_observe_plateau, name, values, self.patience_epochs),
        )

    def _split_means(self, history: History) -> tuple[list[float], float | None]:
        """Return the newest mean losses, and the best before them; None where one of both is not there yet."""
        means = [epoch_loss.mean for epoch_loss in history.losses.epochs]
        last, earlier = means[-self.divergence_epochs :], means[: -self.divergence_epochs]
        finite = [value for value in earlier if math.isfinite(value)]
        return last, min(finite) if finite and len(last) == self.divergence_epochs else None

    def _limit_loss(self, best: float) -> float:
        return best + (self.divergence_factor - 1) * abs(best)

    def _count_without_gain(self, values: Sequence[float]) -> int:
        """Return how many epochs went by since one was better than all before it by what counts."""
        since, best = 0, -math.inf
        for value in values:
            gained = best == -math.inf or value > best + self.min_gain_fraction * abs(best)
            since, best = (0, value) if gained else (since + 1, best)
        return since

    def _is_still_falling(self, history: History) -> bool:
        means = [epoch_loss.mean for epoch_loss in history.losses.epochs][-self.patience_epochs :]
        third = len(means) // 3
        if third < 2 or not all(map(math.isfinite, means)):
            return False
        return median(means[-third:]) < median(means[:third]) * (1 - 10 * self.min_gain_fraction)


def _observe_divergence(last: Sequence[float], best: float, limit: float) -> Observation:
    values = ", ".join(f"{value:.4g}" for value in last)
    return Observation(
        message=f"mean losses of the last {len(last)} epochs are {values}, after {best:.4g} (limit {limit:.4g})",
        subject="divergence",
        diagnosis=DIVERGENCE,
    )


def _observe_plateau(name: str, values: Sequence[float], patience_epochs: int) -> Observation:
    before, lately = values[:-patience_epochs], values[-patience_epochs:]
    return Observation(
        message=f"no better {name} for {patience_epochs} epochs: best {abs(max(before)):.4g}, "
        f"lately {abs(median(lately)):.4g}",
        subject="plateau",
        diagnosis=PLATEAU,
    )


def _find_least(means: Sequence[float]) -> float:
    """Return the least of several means; NaN where none of them is a number, which is beyond every limit."""
    return min((mean for mean in means if math.isfinite(mean)), default=math.nan)


def _list_merits(history: History) -> tuple[str, list[float]]:
    """Return the name and values, greater is better, of the best measure of progress that there is."""
    fitness = [
        epoch_end.fitness
        for epoch_end in history.reports.epochs
        if epoch_end.fitness is not None and math.isfinite(epoch_end.fitness)
    ]
    if fitness:
        return "fitness", fitness
    return "loss", [-epoch_loss.mean for epoch_loss in history.losses.epochs if math.isfinite(epoch_loss.mean)]


DIVERGENCE = Diagnosis(
    ruled_out=("not a bad batch: whole epochs are worse, several in a row",),
    causes=(
        "a learning rate too high, often after a resume that brought the old one back "
        "[robust-thermal-image-object-detection, 18 November 2025]",
        "half precision losing small gradients [PyTorch docs, automatic mixed precision]",
    ),
    advice=(
        "go back to the best checkpoint with a lower lr0; ultralytics takes lr0 from the checkpoint on a resume, so "
        "start again from its weights",
    ),
)
PLATEAU = Diagnosis(
    ruled_out=("not a divergence: the losses do not rise",),
    causes=(
        "it has learnt what there is to learn",
        "the learning rate is too low, or the labels contradict each other",
    ),
    advice=(
        "ultralytics ends by itself with patience=N; compare validation and training losses: far apart is overfitting",
    ),
)
