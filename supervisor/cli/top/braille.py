"""Draws a curve in one row of braille: two values a character, four heights each."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
"""The dots of a column from the bottom up (Unicode, block Braille Patterns)."""
_EMPTY = 0x2800


def curve(values: Sequence[float | None], width: int) -> str:
    """Return the last `2 * width` values as at most `width` characters; a value that is not finite leaves a gap."""
    shown = [value if value is not None and math.isfinite(value) else None for value in values[-2 * width :]]
    known = [value for value in shown if value is not None]
    if not known or width <= 0:
        return ""
    low, high = min(known), max(known)
    heights = [None if value is None else _height_of(value, low, high) for value in shown]
    heights += [None] * (len(heights) % 2)
    pairs = zip(heights[::2], heights[1::2], strict=True)
    return "".join(chr(_EMPTY + _dot(left, _LEFT) + _dot(right, _RIGHT)) for left, right in pairs)


def _height_of(value: float, low: float, high: float) -> int:
    return 1 if high <= low else min(3, int((value - low) / (high - low) * 4))


def _dot(height: int | None, dots: Sequence[int]) -> int:
    return 0 if height is None else dots[height]
