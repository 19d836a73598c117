"""The course of a loss around one step: a resumed training is held against it; it acts on nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from supervisor.core.readings import StepRecord

REACH_STEPS = 100
"""Losses count that were made within so many steps before and after a checkpoint."""
LEAST = 20
"""Fewer losses than this say nothing."""
NEWEST = 30
YOUNG_STEPS = 200
"""Until then a loss goes anywhere: that of a YOLO trained from scratch rose twentyfold in its first 100 steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Quartiles of the losses around a step: single batches are noise, most of them together are not."""

    losses: int
    low: float
    median: float
    high: float
    latest: Curve | None = None
    """The newest of these losses alone: where a loss is on the move, it goes on from there."""

    def left_by(self, other: Curve) -> bool:
        """Whether `other`, made later, no longer lies on this curve.

        Three quarters of its losses have to lie beyond three quarters of these, and the medians further apart than
        half the old one and than the spread of these: noise, a warm-up and a changed order of batches do not do that.
        Below counts as well: the loss of a detector that finds nothing any more is low. What goes on where the newest
        losses were has left nothing.
        """
        return self._far_from(other) and (self.latest is None or self.latest._far_from(other))

    def _far_from(self, other: Curve) -> bool:
        apart = abs(other.median - self.median)
        beyond = other.low > self.high or other.high < self.low
        return beyond and apart > max(0.5 * abs(self.median), self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where an attempt was resumed, and the curve that it is to continue."""

    step: int
    curve: Curve | None = None


def curve_of(losses: Iterable[float | None], least: int = LEAST) -> Curve | None:
    """Return the quartiles of the finite losses among these, None where there are fewer than `least`."""
    known = sorted(one for one in losses if one is not None and math.isfinite(one))
    if len(known) < max(1, least):
        return None
    return Curve(losses=len(known), low=_at(known, 0.25), median=_at(known, 0.5), high=_at(known, 0.75))


def around(records: Iterable[StepRecord], step: int, trouble_step: int | None = None) -> Curve | None:
    """Return the curve around `step` as it was made before any trouble; None for a young training.

    Of a step that was made twice both losses count.
    """
    if step < YOUNG_STEPS:
        return None
    end = step + REACH_STEPS if trouble_step is None else min(step + REACH_STEPS, trouble_step - 1)
    near = [one for one in records if step - REACH_STEPS < one.step <= end]
    curve = curve_of(one.loss for one in near)
    newest = sorted(near, key=lambda one: one.step)[-NEWEST:]
    return None if curve is None else replace(curve, latest=curve_of(one.loss for one in newest))


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[round((len(ordered) - 1) * share)]
