"""Losses compared with their usual level, by step and by epoch, in bounded memory.

An episode begins where a loss is far above its usual level; that level stays fixed during the episode, so that a
lasting spike does not become usual. NaN is far above every level: each comparison is written so.

A process may fit one model after the other, as a cross-validation and a forecast by several models do. Where epochs are
counted from the first again and the losses are higher than those before, another model is fitted, whose losses are
compared with its own; one that is fitted further, by several calls of its framework, goes on as it was. Where epochs
are not known, as in a search for hyperparameters, another model may begin with the first step of another optimizer.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from supervisor.core.readings import StepRecord
from supervisor.core.stats.median import median, spread

USUAL_STEPS = 512
LEVEL_EVERY_STEPS = 128
RECENT_STEPS = 32
FAR = 8.0
"""So many deviations above the usual level begin an episode; below half of that, over RECENT_STEPS, it ends."""
EPISODE_STEPS = 4096
"""What has stayed so long is the new level, however it came about."""
LEAST_SPREAD = 0.02
"""Of the level: losses that hardly move at all are not measured against nothing."""
OTHER_FIT_STEPS = USUAL_STEPS // 2
"""So many steps after another optimizer has begun to step, losses far above the level are those of another model."""
EPOCHS_KEPT = 512
OTHER_FIT_FACTOR = 1.25
"""The first epoch of another model has a mean loss so many times that of the last epoch of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The usual loss."""

    middle: float
    spread: float

    def distance(self, loss: float) -> float:
        """Return by how many deviations a loss lies above; NaN for NaN."""
        return (loss - self.middle) / self.spread


@dataclass(slots=True, kw_only=True)
class Episode:
    """Losses far above what was usual before, from the first of them on."""

    level: Level
    first: StepRecord
    highest: StepRecord
    last: StepRecord
    steps: int = 0
    """Since the first."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def recent_distance(self) -> float:
        """Return how far above the level the newest losses lie; infinite where half of them are no numbers."""
        finite = [value for value in self.recent if math.isfinite(value)]
        if 2 * len(finite) < len(self.recent):
            return math.inf
        return self.level.distance(median(finite)) if finite else math.inf

    def add(self, record: StepRecord, loss: float) -> None:
        """Take in the next loss."""
        self.steps += 1
        self.last = record
        self.recent.append(loss)
        highest = self.highest.loss
        if highest is None or (math.isfinite(highest) and not loss <= highest):
            self.highest = record


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLoss:
    """The mean loss of one epoch, as far as it was seen."""

    epoch: int
    steps: int
    mean: float
    """NaN where any of its losses was."""


@dataclass(slots=True)
class Losses:
    """The usual level, the newest episode, and the means of epochs, newest last."""

    level: Level | None = None
    episode: Episode | None = None
    """Under way."""
    ended: Episode | None = None
    """The newest that is over."""
    epochs: deque[EpochLoss] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))
    _window: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_STEPS))
    _since_level: int = 0
    _new_steps: int = 0
    """For so many more steps the losses may be those of another model."""
    _first_epoch: int | None = None
    """Of the attempt, or the one that its epochs are counted from again."""
    _counts_again: bool = False
    """Whether the epoch under way is the first since they are."""
    _epoch: int | None = None
    _epoch_steps: int = 0
    _epoch_sum: float = 0.0

    @property
    def epoch(self) -> EpochLoss | None:
        """The epoch under way; None before the first step that names one."""
        if self._epoch is None or not self._epoch_steps:
            return None
        return EpochLoss(epoch=self._epoch, steps=self._epoch_steps, mean=self._epoch_sum / self._epoch_steps)

    def add(self, record: StepRecord) -> None:
        """Take in a step; one without a loss says nothing."""
        loss = record.loss
        if loss is None:
            return
        self._add_to_epoch(record, loss)
        self._new_steps = OTHER_FIT_STEPS if record.begins else max(self._new_steps - 1, 0)
        if self.episode is not None and record.begins:
            self._end_episode(is_usual=False)
        if self.episode is not None:
            self._continue_episode(self.episode, record, loss)
        elif self.level is not None and not self.level.distance(loss) < FAR:
            if (self._counts_again or self._new_steps) and math.isfinite(loss):
                self._forget_level()
                return
            self.episode = Episode(level=self.level, first=record, highest=record, last=record)
            self.episode.recent.append(loss)
        elif math.isfinite(loss):
            self._add_usual(loss)

    def _add_usual(self, loss: float) -> None:
        self._window.append(loss)
        self._since_level += 1
        if self._since_level >= LEVEL_EVERY_STEPS and len(self._window) >= USUAL_STEPS // 2:
            middle = median(self._window)
            width = max(spread(self._window, middle), LEAST_SPREAD * abs(middle), 1e-9)
            self.level, self._since_level = Level(middle=middle, spread=width), 0

    def _continue_episode(self, episode: Episode, record: StepRecord, loss: float) -> None:
        episode.add(record, loss)
        over = len(episode.recent) == RECENT_STEPS and episode.recent_distance() < FAR / 2
        if over or episode.steps >= EPISODE_STEPS:
            self._end_episode(is_usual=over)

    def _end_episode(self, *, is_usual: bool) -> None:
        """End the episode; without `is_usual` the losses after it have another level."""
        self.ended, self.episode = self.episode, None
        if not is_usual:
            self._forget_level()

    def _forget_level(self) -> None:
        self.level, self._since_level = None, 0
        self._window.clear()

    def _add_to_epoch(self, record: StepRecord, loss: float) -> None:
        if record.epoch is None:
            return
        if record.epoch != self._epoch:
            self._close_epoch()
            self._begin_epoch(record.epoch)
        self._epoch_steps += 1
        self._epoch_sum += loss

    def _close_epoch(self) -> None:
        closed = self.epoch
        if closed is None:
            return
        if self._counts_again and self.epochs and _is_of_other_fit(closed.mean, self.epochs[-1].mean):
            self.epochs.clear()
        self.epochs.append(closed)

    def _begin_epoch(self, epoch: int) -> None:
        """Begin to sum its losses; epochs that are counted down come to no first one again."""
        first, last = self._first_epoch, self._epoch
        self._counts_again = first is not None and last is not None and epoch <= first < last
        if first is None or self._counts_again:
            self._first_epoch = epoch
        self._epoch, self._epoch_steps, self._epoch_sum = epoch, 0, 0.0


def _is_of_other_fit(mean: float, last: float) -> bool:
    """Whether the first epoch of a new count is worse than the last one before; one of NaN is not told apart."""
    return mean > last + (OTHER_FIT_FACTOR - 1) * abs(last)
