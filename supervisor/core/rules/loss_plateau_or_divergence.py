"""Loss over epochs: it rises again, or nothing improves any more. It stops nothing by default: both can be meant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, beyond, unwatched
from supervisor.core.history import History
from supervisor.core.remedies import causes
from supervisor.core.stats.median import median
from supervisor.core.unseen import no_steps_due


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlateauOrDivergence:
    """Mean training losses of `divergence_epochs` epochs in a row at `divergence_factor` times the best one before.

    Written so that NaN trips it. Or `patience_epochs` epochs without a better figure of merit (without one, a lower
    loss) by `min_gain_fraction`: that is told and never acts, for it harms nothing but the electricity bill.
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

    def check(self, history: History) -> RedFlag | None:
        """Flag a divergence first, then a plateau."""
        if history.over or history.train_ended:
            return None
        return self._divergence(history) or self._plateau(history)

    def _divergence(self, history: History) -> RedFlag | None:
        last, best = self._means(history)
        if best is None:
            return None
        bound = self._bound(best)
        if not beyond(_least(last), bound):
            return None
        values = ", ".join(f"{value:.4g}" for value in last)
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"mean losses of the last {len(last)} epochs are {values}, after {best:.4g} (limit {bound:.4g})",
            subject="divergence",
            diagnosis=DIVERGENCE,
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return where the newest epochs stand against the best one before, and for how long nothing was better."""
        why = no_steps_due(history) or (None if history.losses.epochs else "no epoch is over yet")
        if why is not None:
            return unwatched(self.name, "losses over epochs", why)
        last, best = self._means(history)
        many = self.divergence_epochs
        rises = Gauge(
            rule=self.name,
            what=f"least mean loss of the last {many} epochs, against the best before",
            now=None if best is None else _least(last),
            limit=None if best is None else self._bound(best),
            rest=best,
            severity=Severity.acting(act=self.act),
            not_watched=f"fewer than {many + 1} epochs are over" if best is None else None,
        )
        name, values = _merit(history)
        stands = Gauge(
            rule=self.name,
            what=f"epochs without a better {name}",
            now=self._without_gain(values),
            limit=self.patience_epochs,
            lacks="that the losses no longer fall" if self._still_falling(history) else None,
        )
        return rises, stands

    def _means(self, history: History) -> tuple[list[float], float | None]:
        """Return the newest mean losses, and the best before them; None where one of both is not there yet."""
        means = [epoch_loss.mean for epoch_loss in history.losses.epochs]
        last, earlier = means[-self.divergence_epochs :], means[: -self.divergence_epochs]
        finite = [value for value in earlier if math.isfinite(value)]
        return last, min(finite) if finite and len(last) == self.divergence_epochs else None

    def _bound(self, best: float) -> float:
        return best + (self.divergence_factor - 1) * abs(best)

    def _without_gain(self, values: Sequence[float]) -> int:
        """Return how many epochs went by since one was better than all before it by what counts."""
        since, best = 0, -math.inf
        for value in values:
            gained = best == -math.inf or value > best + self.min_gain_fraction * abs(best)
            since, best = (0, value) if gained else (since + 1, best)
        return since

    def _plateau(self, history: History) -> RedFlag | None:
        name, values = _merit(history)
        if self._without_gain(values) < self.patience_epochs or self._still_falling(history):
            return None
        before, lately = values[: -self.patience_epochs], values[-self.patience_epochs :]
        best = max(before)
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
        means = [epoch_loss.mean for epoch_loss in history.losses.epochs][-self.patience_epochs :]
        third = len(means) // 3
        if third < 2 or not all(map(math.isfinite, means)):
            return False
        return median(means[-third:]) < median(means[:third]) * (1 - 10 * self.min_gain_fraction)


def _least(means: Sequence[float]) -> float:
    """Return the least of several means; NaN where none of them is a number, which no bound holds back."""
    return min((mean for mean in means if math.isfinite(mean)), default=math.nan)


def _merit(history: History) -> tuple[str, list[float]]:
    """Return the name and values, greater is better, of what tells best whether the training improves."""
    fitness = [
        epoch_end.fitness
        for epoch_end in history.told.epochs
        if epoch_end.fitness is not None and math.isfinite(epoch_end.fitness)
    ]
    if fitness:
        return "fitness", fitness
    return "loss", [-epoch_loss.mean for epoch_loss in history.losses.epochs if math.isfinite(epoch_loss.mean)]


DIVERGENCE = Diagnosis(
    ruled_out=("not a bad batch: whole epochs are worse, several in a row",),
    causes=(
        "a learning rate too high, often after a resume that brought the old one back [owner's record of 18 November]",
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
