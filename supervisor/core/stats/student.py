"""Student's t distribution with whole degrees of freedom, for means of few values whose spread is estimated from them.

The tail is the finite sum of Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4; the
limit of a spread uses Wilson and Hilferty's approximation of chi-square (1931), exact to 1 % from two degrees on.
"""

from __future__ import annotations

import math
from functools import lru_cache

HALVINGS = 60
"""Of the angle whose tangent is searched for: to the last digits of a float."""
NINE_TENTHS_Z = 1.2816
"""Below so many deviations lie nine tenths of a normal distribution."""


def get_upper_tail(value: float, degrees: int) -> float:
    """Return how often a t of so many degrees of freedom, at least one, is above `value`, which is no less than 0."""
    return _get_tail_of_angle(math.atan(value / math.sqrt(degrees)), degrees)


@lru_cache(maxsize=1024)
def get_upper_quantile(share: float, degrees: int) -> float:
    """Return above which value `share` of a t distribution lies: more than 0, and at most a half."""
    low, high = 0.0, math.pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _get_tail_of_angle(middle, degrees) > share:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def get_likely_least(deviation: float, degrees: int) -> float:
    """Return what the true deviation exceeds in nine of ten cases, where it is estimated with so many degrees."""
    ninth = 2 / (9 * degrees)
    return deviation / math.sqrt((1 - ninth + NINE_TENTHS_Z * math.sqrt(ninth)) ** 3)


def _get_tail_of_angle(angle: float, degrees: int) -> float:
    """Return the tail above the root of the degrees times the tangent of an angle."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2
    term = cosine if is_odd else 1.0
    series = term if degrees > 1 else 0.0
    for factor in range(2 if is_odd else 1, degrees - 2, 2):
        term *= cosine * cosine * factor / (factor + 1)
        series += term
    inside = 2 / math.pi * (angle + sine * series) if is_odd else sine * series
    return (1 - inside) / 2
