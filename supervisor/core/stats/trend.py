"""One quantity over hours in bounded memory, and how fast it rises, with a confidence interval.

The least value of each minute is kept: memory that a program needs repeatedly is released in between, and memory
that leaks is not. The slope is Theil and Sen's (the median of the slopes between all pairs), the interval Sen's (1968),
from the variance of Kendall's S; both tolerate a fifth of the points being outliers.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from supervisor.core.moments import Moment
from supervisor.core.stats.median import quantile

BUCKET_S = 60.0
BUCKETS_KEPT = 720
POINTS_FITTED = 60
MIN_POINTS = 10
"""With fewer than eight, the interval would be wider than all slopes."""
WINDOW_S = (MIN_POINTS * BUCKET_S, BUCKETS_KEPT * BUCKET_S)
"""The shortest and the longest time for which a slope is available."""
CONFIDENCE_Z = 3.29
"""99.9 %: readings a minute apart are not independent, so an interval for 95 % would be too narrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """How fast a quantity rises, per second, with the bounds of its confidence interval."""

    per_s: float
    low_per_s: float
    high_per_s: float
    window_s: float
    """Time that the points cover."""
    rise: float
    """By how much the fitted line rises in that time."""

    def left_s(self, room: float) -> float | None:
        """Return the time until `room` is used up at this rate; None where it does not rise."""
        return max(0.0, room) / self.per_s if self.per_s > 0 else None

    def falls_short_of(self, rise: float) -> str | None:
        """Return what is missing for a significant rise by at least `rise`; None where nothing is."""
        if not self.low_per_s > 0:
            return "a significant rise"
        return None if self.rise >= rise else "a large enough rise"


@dataclass(slots=True)
class Trend:
    """The least value of each minute, the newest 12 hours of them."""

    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BUCKETS_KEPT))
    """(monotonic seconds, least value) of each minute that is over."""
    newest: float | None = None
    _began_s: float = 0.0
    _least: float | None = None
    _closed: int = 0
    _fitted: dict[float, tuple[int, Slope | None]] = field(default_factory=dict, compare=False)

    def add(self, at: Moment, value: float) -> None:
        """Take in one reading."""
        self.newest = value
        if self._least is None:
            self._began_s, self._least = at.monotonic_s, value
        elif at.monotonic_s - self._began_s < BUCKET_S:
            self._least = min(self._least, value)
        else:
            self.points.append((self._began_s, self._least))
            self._began_s, self._least = at.monotonic_s, value
            self._closed += 1

    def slope(self, window_s: float) -> Slope | None:
        """Return the slope of the newest `window_s`; None before the points cover it, or where they are too few."""
        known = self._fitted.get(window_s)
        if known is None or known[0] != self._closed:
            known = self._fitted[window_s] = (self._closed, self._fit_slope(window_s))
        return known[1]

    def _fit_slope(self, window_s: float) -> Slope | None:
        if not self.points or self.points[-1][0] - self.points[0][0] < window_s - BUCKET_S:
            return None
        recent = [pair for pair in self.points if self.points[-1][0] - pair[0] <= window_s]
        every = -(-len(recent) // POINTS_FITTED)
        return _estimate_slope(recent[::-1][::every][::-1]) if len(recent) >= MIN_POINTS else None


def _estimate_slope(points: list[tuple[float, float]]) -> Slope:
    slopes = sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, earlier in enumerate(points)
        for later in points[place + 1 :]
    )
    count = len(points)
    reach = CONFIDENCE_Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18) / 2 / len(slopes)
    middle, window_s = quantile(slopes, 0.5), points[-1][0] - points[0][0]
    return Slope(
        per_s=middle,
        low_per_s=quantile(slopes, 0.5 - reach),
        high_per_s=quantile(slopes, 0.5 + reach),
        window_s=window_s,
        rise=middle * window_s,
    )
