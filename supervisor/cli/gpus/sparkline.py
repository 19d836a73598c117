"""Draws the last values of a measurement as one row of blocks."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], highest: float | None = None) -> str:
    """Return one block per value between 0 and `highest` (None: the largest value); a missing value is a blank."""
    known = [value for value in values if value is not None]
    top = max(known, default=0.0) if highest is None else highest
    return "".join(" " if value is None else _choose_block(value, top) for value in values)


def _choose_block(value: float, top: float) -> str:
    if top <= 0:
        return _BLOCKS[0]
    return _BLOCKS[min(len(_BLOCKS) - 1, max(0, int(value / top * len(_BLOCKS))))]
