"""Loss spike: a loss far above its own usual level. One bad batch is told; only a level that stays up can act.

Proof that it stays: the median of the newest 32 losses, `stay_steps` after the first, is still that far above the level
that was usual before, by deviations and by multiples. Both comparisons are written so that NaN trips them. A NaN that
stands alone is `non_finite_loss`'s to tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import STEPS_KEPT, History
from supervisor.core.losses import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike:
    """A loss `distance_factor` deviations above the median of 512 steps and `times_factor` times it.

    It tells by default, also what stays: a changed data mix or image size raises losses in sound trainings too.
    """

    name: ClassVar[str] = "loss_spike"
    enabled: bool = True
    act: Act = False
    distance_factor: float = 20.0
    """At least 8: nearer ones are not kept."""
    times_factor: float = 3.0
    stay_steps: int = 200

    def check(self, history: History) -> RedFlag | None:
        """Flag a level that stays up, or else the newest single spike."""
        if history.over:
            return None
        under_way = history.losses.episode
        if under_way is not None and self._stays(under_way):
            return self._risen(history, under_way)
        episode = under_way or history.losses.ended
        if episode is None or not history.steps or history.steps[-1].step - episode.last.step >= STEPS_KEPT:
            return None
        return self._spike(history, episode)

    def _stays(self, episode: Episode) -> bool:
        if episode.steps < self.stay_steps:
            return False
        level, distance = episode.level, episode.recent_distance()
        risen = level.middle + distance * level.spread
        return not distance < self.distance_factor and not risen < self._bound(episode)

    def _bound(self, episode: Episode) -> float:
        return episode.level.middle + (self.times_factor - 1) * abs(episode.level.middle)

    def _risen(self, history: History, episode: Episode) -> RedFlag:
        level, distance = episode.level, episode.recent_distance()
        now = f"{level.middle + distance * level.spread:.4g}" if math.isfinite(distance) else "mostly not finite"
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"the loss rose from {level.middle:.4g} to {now} at step {episode.first.step} and has stayed there "
            f"for {episode.steps} steps",
            since=episode.first.at,
            since_step=episode.first.step,
            subject="stays",
            diagnosis=_diagnosis(stays=True),
        )

    def _spike(self, history: History, episode: Episode) -> RedFlag | None:
        highest = episode.highest
        loss = highest.loss
        if loss is None or not math.isfinite(loss):
            return None
        if episode.level.distance(loss) < self.distance_factor or loss < self._bound(episode):
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"loss {loss:.4g} at step {highest.step}, {episode.level.distance(loss):.0f} deviations above the "
            f"usual {episode.level.middle:.4g}",
            diagnosis=_diagnosis(stays=False),
        )


def _diagnosis(*, stays: bool) -> Diagnosis:
    single = (
        "one batch: nothing is stopped for it" if not stays else "a single bad batch: half of the newest losses are up"
    )
    return Diagnosis(
        ruled_out=(f"not {single}",) if stays else (),
        causes=(
            "a broken image or label in that batch [OLMo-core, skip-step optimizers leave such batches out]",
            "a learning rate too high for this batch size [LLM-Foundry, KillLossSpike: mean of a window x 2]",
            "a fault of the card's memory that changed a weight [Megatron-LM, rerun state machine]",
        ),
        advice=(
            "look at the batch: the step number is its place in the epoch",
            "lower lr0, or switch mixed precision off, and go back to the checkpoint before the first of them",
        )
        if stays
        else ("nothing, while it stays alone",),
    )
