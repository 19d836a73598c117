"""Loss spike: a loss far above its usual level. One bad batch is a warning; only a level that stays up can act.

Proof that it stays: the median of the newest 32 losses, `sustained_steps` after the first, is still that far above
the level that was usual before, by deviations and by multiples. Both comparisons are written so that NaN trips them.
A single NaN is reported by `non_finite_loss`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, STEPS_KEPT, History
from supervisor.core.remedies import causes
from supervisor.core.stats.losses import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike:
    """A loss `distance_factor` deviations above the median of 512 steps and `times_factor` times it.

    It only warns by default: a changed data mix or image size raises losses in healthy trainings too.
    """

    name: ClassVar[str] = "loss_spike"
    group: ClassVar[Group] = "losses"
    cause: ClassVar[str] = causes.NON_FINITE
    enabled: bool = True
    act: Act = False
    distance_factor: float = 20.0
    """At least 8: nearer ones are not kept."""
    times_factor: float = 3.0
    sustained_steps: int = 200

    def may_flag(self, history: History) -> bool:
        """Whether losses are or recently were far above their usual level."""
        return not history.over and (history.losses.episode is not None or _find_episode(history) is not None)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long the losses have been above what is usual, and how far the highest is."""
        known = history.losses.level or _find_episode(history)
        why = ATTEMPT_ENDED if history.over else None if known else "no usual level yet"
        if why is not None:
            return not_applicable("losses above their usual level", why)
        return self._measure_level(history.losses.episode), self._measure_highest(history)

    def _measure_highest(self, history: History) -> Gauge:
        """Return how far the newest spike lies above the level, or else the newest loss."""
        episode, level = _find_episode(history), history.losses.level
        last = history.last_step
        usual = None if last is None or last.loss is None or level is None else level.distance(last.loss)
        return Gauge(
            what="the highest loss above the usual, in deviations",
            now=usual if episode is None else _measure_distance(episode),
            limit=self.distance_factor,
            lacks="a loss so far above" if episode is None else self._find_lack(episode),
            observe=None if episode is None else partial(_observe_spike, episode),
        )

    def _measure_level(self, episode: Episode | None) -> Gauge:
        return Gauge(
            what="losses stay above their usual level",
            unit="steps",
            now=0 if episode is None else episode.steps,
            limit=self.sustained_steps,
            lacks="a rise" if episode is None else self._falls_short(episode),
            severity=Severity.acting(act=self.act),
            observe=None if episode is None else partial(_observe_rise, episode),
        )

    def _falls_short(self, episode: Episode) -> str | None:
        """Return what the newest losses lack to be a level that stays up; None where they are one."""
        level, distance = episode.level, episode.recent_distance()
        risen = level.middle + distance * level.spread
        if distance < self.distance_factor:
            return f"{self.distance_factor:g} deviations in half of the newest"
        return f"{self.times_factor:g} times the usual" if risen < self._limit_loss(episode) else None

    def _find_lack(self, episode: Episode) -> str | None:
        """Return what the highest loss lacks to be reported, apart from its distance; None where nothing."""
        loss = episode.highest.loss
        if loss is None or not math.isfinite(loss):
            return "a finite loss: non_finite_loss reports the others"
        return f"{self.times_factor:g} times the usual" if loss < self._limit_loss(episode) else None

    def _limit_loss(self, episode: Episode) -> float:
        return episode.level.middle + (self.times_factor - 1) * abs(episode.level.middle)


def _observe_rise(episode: Episode) -> Observation:
    level, distance = episode.level, episode.recent_distance()
    now = f"{level.middle + distance * level.spread:.4g}" if math.isfinite(distance) else "mostly not finite"
    return Observation(
        message=f"the loss rose from {level.middle:.4g} to {now} at step {episode.first.step} and has stayed there "
        f"for {episode.steps} steps",
        since=episode.first.at,
        since_step=episode.first.step,
        subject="stays",
        diagnosis=_diagnose(stays=True),
    )


def _observe_spike(episode: Episode) -> Observation:
    highest = episode.highest
    return Observation(
        message=f"loss {highest.loss:.4g} at step {highest.step}, {_measure_distance(episode):.0f} deviations above "
        f"the usual {episode.level.middle:.4g}",
        diagnosis=_diagnose(stays=False),
    )


def _find_episode(history: History) -> Episode | None:
    """Return the episode under way or the newest one, as long as its steps are known."""
    episode = history.losses.episode or history.losses.ended
    last = history.last_step
    if episode is None or last is None or last.step - episode.last.step >= STEPS_KEPT:
        return None
    return episode


def _measure_distance(episode: Episode) -> float | None:
    """Return by how many deviations the highest loss of an episode lies above its level."""
    loss = episode.highest.loss
    return None if loss is None else episode.level.distance(loss)


def _diagnose(*, stays: bool) -> Diagnosis:
    return Diagnosis(
        ruled_out=("not a single bad batch: half of the newest losses are up",) if stays else (),
        causes=(
            "a broken image or label in that batch [OLMo-core, skip-step optimizers leave such batches out]",
            "a learning rate too high for this batch size [LLM-Foundry, KillLossSpike: mean of a window x 2]",
            "a fault of the GPU's memory that changed a weight [Megatron-LM, rerun state machine]",
        ),
        advice=(
            "look at the batch: the step number is its place in the epoch",
            "lower lr0, or switch mixed precision off, and go back to the checkpoint before the first of them",
        )
        if stays
        else ("nothing, while it stays alone",),
    )
