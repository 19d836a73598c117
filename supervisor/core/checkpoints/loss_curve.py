"""The losses around a step before and after a resume, and whether the training continued or started over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the process that looks at checkpoints for the daemon has no readings
    from supervisor.core.readings import StepRecord

REACH_STEPS = 100
"""Losses count that were made within so many steps before and after a checkpoint."""
LEAST = 20
"""The least number of losses that can be compared."""
NEWEST = 30
ERROR_ODDS = 33_000_000
"""The median that losses are drawn from lies outside of its bounds once in so many cases, on either side."""
YOUNG_STEPS = 200
"""Until then a loss goes anywhere: that of a YOLO trained from scratch rose twentyfold in its first 100 steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Quartiles of the losses around a step, and bounds of the median that they are drawn from.

    The bounds are two of the losses themselves, by rank. Of losses drawn independently each lies below the median with
    a chance of one half, whatever their distribution, so the binomial distribution says how often a rank lies beyond
    it: at most once in ERROR_ODDS cases. Of 30 losses the bounds are the second smallest and the
    second largest; fewer than 25 have none.
    """

    losses: int
    low: float
    median: float
    high: float
    median_least: float
    median_most: float
    latest: Curve | None = None
    """The newest of these losses alone: a changing loss continues from there."""

    def left_by(self, other: Curve) -> bool:
        """Whether `other`, made later, no longer lies on this curve.

        The median that `other` is drawn from has to lie beyond three quarters of these losses, beyond the median that
        these are drawn from, and further from their median than half of it and than their spread: noise, a warm-up
        and a changed order of batches do not do that. Below counts as well: the loss of a detector that finds nothing
        any more is low. A curve that continues from the newest losses has not left this one.
        """
        return self._far_from(other) and (self.latest is None or self.latest._far_from(other))

    def _far_from(self, other: Curve) -> bool:
        apart = max(0.5 * abs(self.median), self.high - self.low)
        return other.median_least > max(self.high, self.median_most, self.median + apart) or other.median_most < min(
            self.low, self.median_least, self.median - apart
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where an attempt was resumed, and the curve that it is to continue."""

    step: int
    curve: Curve | None = None


def curve_of(losses: Iterable[float | None], least: int = LEAST) -> Curve | None:
    """Return the quartiles of the finite losses among these, None where there are fewer than `least`."""
    known = sorted(loss for loss in losses if loss is not None and math.isfinite(loss))
    if len(known) < max(1, least):
        return None
    rank = _rank_of_bound(len(known))
    return Curve(
        losses=len(known),
        low=_pick_quantile(known, 0.25),
        median=_pick_quantile(known, 0.5),
        high=_pick_quantile(known, 0.75),
        median_least=-math.inf if rank is None else known[rank],
        median_most=math.inf if rank is None else known[-1 - rank],
    )


def cut_curve(records: Iterable[StepRecord], step: int, fault_step: int | None = None) -> Curve | None:
    """Return the curve around `step` as it was before any fault; None for a training with too few losses.

    Of a step that was made twice both losses count.
    """
    if step < YOUNG_STEPS:
        return None
    end = step + REACH_STEPS if fault_step is None else min(step + REACH_STEPS, fault_step - 1)
    near = [record for record in records if step - REACH_STEPS < record.step <= end]
    curve = curve_of(record.loss for record in near)
    newest = sorted(near, key=lambda record: record.step)[-NEWEST:]
    return None if curve is None else replace(curve, latest=curve_of(record.loss for record in newest))


def _pick_quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[round((len(ordered) - 1) * share)]


@cache
def _rank_of_bound(count: int) -> int | None:
    """Return the highest rank, counted from 0, that lies above the median at most once in ERROR_ODDS cases.

    None where the smallest of `count` values does so more often.
    """
    ways, below, rank = 1, 0, None
    for number in range(count):
        below += ways
        if below * ERROR_ODDS > 2**count:
            break
        ways, rank = ways * (count - number) // (number + 1), number
    return rank


FIRST_LOSSES = 30
"""So many first losses are compared."""


def first_curve(losses: Iterable[float | None]) -> Curve | None:
    """Return the curve of the first losses of an attempt; None where there are not enough of them."""
    return curve_of(list(losses)[:FIRST_LOSSES], least=FIRST_LOSSES)


def went_on_by_losses(start: Curve | None, resumed: Curve | None, now: Curve | None) -> bool | None:
    """Return whether the first losses `now` continue those around the checkpoint, or repeat those of the start.

    None where either is unknown, the two are alike, or the losses are like neither or both.
    """
    if start is None or resumed is None or now is None or not start.left_by(resumed):
        return None
    like_start, like_resumed = not start.left_by(now), not resumed.left_by(now)
    return like_resumed if like_start != like_resumed else None
