"""Medians and their kin over plain finite numbers: one outlier moves none of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of numbers in ascending order lie, interpolated between two."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Iterable[float]) -> float:
    """Return the median of at least one number."""
    return quantile(sorted(values), 0.5)


def spread(values: Sequence[float], middle: float) -> float:
    """Return the median absolute deviation from `middle`, scaled to a standard deviation."""
    return MAD_TO_SIGMA * median(abs(value - middle) for value in values)
