"""Loss over epochs: it rises again, or nothing improves any more. It stops nothing by default: both can be meant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.robust import median


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlateauOrDivergence:
    """Mean training losses of `divergence_epochs` epochs in a row at `divergence_factor` times the best one before.

    Written so that NaN trips it. Or `patience_epochs` epochs without a better figure of merit (without one, a lower
    loss) by `min_gain_fraction`: that is told and never acts, for it harms nothing but the electricity bill.
    """

    name: ClassVar[str] = "loss_plateau_or_divergence"
    enabled: bool = True
    act: Act = False
    divergence_factor: float = 1.5
    divergence_epochs: int = 3
    patience_epochs: int = 30
    min_gain_fraction: float = 0.001

    def check(self, history: History) -> RedFlag | None:
        """Flag a divergence first, then a plateau."""
        if history.over or history.train_ended:
            return None
        return self._divergence(history) or self._plateau(history)

    def _divergence(self, history: History) -> RedFlag | None:
        means = list(history.losses.epochs)
        last, earlier = means[-self.divergence_epochs :], means[: -self.divergence_epochs]
        finite = [one.mean for one in earlier if math.isfinite(one.mean)]
        if len(last) < self.divergence_epochs or not finite:
            return None
        best = min(finite)
        bound = best + (self.divergence_factor - 1) * abs(best)
        if any(one.mean < bound for one in last):
            return None
        values = ", ".join(f"{one.mean:.4g}" for one in last)
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"mean losses of the last {len(last)} epochs are {values}, after {best:.4g} (limit {bound:.4g})",
            subject="divergence",
            diagnosis=DIVERGENCE,
        )

    def _plateau(self, history: History) -> RedFlag | None:
        name, values = _merit(history)
        if len(values) <= self.patience_epochs:
            return None
        before, lately = values[: -self.patience_epochs], values[-self.patience_epochs :]
        best = max(before)
        if any(one > best + self.min_gain_fraction * abs(best) for one in lately):
            return None
        if self._still_falling(history):
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"no better {name} for {self.patience_epochs} epochs: best {abs(best):.4g}, "
            f"lately {abs(median(lately)):.4g}",
            subject="plateau",
            diagnosis=PLATEAU,
        )

    def _still_falling(self, history: History) -> bool:
        means = [one.mean for one in history.losses.epochs][-self.patience_epochs :]
        third = len(means) // 3
        if third < 2 or not all(map(math.isfinite, means)):
            return False
        return median(means[-third:]) < median(means[:third]) * (1 - 10 * self.min_gain_fraction)


def _merit(history: History) -> tuple[str, list[float]]:
    """Return the name and values, greater is better, of what tells best whether the training improves."""
    fitness = [one.fitness for one in history.told.epochs if one.fitness is not None and math.isfinite(one.fitness)]
    if fitness:
        return "fitness", fitness
    return "loss", [-one.mean for one in history.losses.epochs if math.isfinite(one.mean)]


DIVERGENCE = Diagnosis(
    ruled_out=("not a bad batch: whole epochs are worse, several in a row",),
    causes=(
        "a learning rate too high, often after a resume that brought the old one back [owner's record of 18 November]",
        "half precision losing small gradients [PyTorch docs, automatic mixed precision]",
    ),
    advice=(
        "go back to the best checkpoint with a lower lr0; ultralytics takes lr0 from the checkpoint on a resume, so "
        "start anew from its weights",
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
