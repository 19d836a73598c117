"""Durations counted by how long they were."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class HistogramKnown:
    """A histogram at one moment."""

    buckets: tuple[tuple[float, int], ...]
    """Upper limits, the last of them infinite, and how many values were not above each."""
    total_s: float


class Histogram:
    """Values of one thread, read by any: what is read belongs together but for the value that comes just then."""

    def __init__(self, *limits_s: float) -> None:
        self._limits_s = (*limits_s, math.inf)
        self._counts = [0] * len(self._limits_s)
        self._total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration; one that a clock step made negative counts as none."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(self._limits_s, seconds)] += 1
        self._total_s += seconds

    def known(self) -> HistogramKnown:
        """Return what has been counted."""
        counts, total_s = tuple(self._counts), self._total_s
        return HistogramKnown(tuple(zip(self._limits_s, accumulate(counts), strict=True)), total_s)
