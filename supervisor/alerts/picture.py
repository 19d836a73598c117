"""A picture of the loss as PNG, for alerts that are read on a phone; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.core.reports.canvas import GLYPH_HEIGHT, Canvas, measure

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 28, 28
"""Pixels around the chart, for its labels."""
PALETTE = ((255, 255, 255), (226, 226, 226), (90, 90, 90), (173, 205, 240), (21, 88, 176), (200, 40, 40))
PAPER, GRID, TEXT, BAND, LINE, INCIDENT = range(len(PALETTE))
GRID_LINES = 4
SPIKE_SPANS = 1.0
"""The scale reaches at most so many spans of the mean beyond it: what is farther is cut off at the edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The loss over a time that ends with an alert; lists of one length, None where a line is broken."""

    hours: float
    at_s: Sequence[float | None]
    """Seconds after the begin."""
    low: Sequence[float | None]
    mean: Sequence[float | None]
    high: Sequence[float | None]
    incidents_s: Sequence[float] = ()
    """Seconds after the begin at which incidents were opened."""


def draw_loss(curve: LossCurve) -> bytes | None:
    """Return the PNG of a curve, None where fewer than two of its points are known."""
    scale = _find_scale(curve)
    if scale is None:
        return None
    canvas = _Canvas()
    _draw_frame(canvas, scale, curve.hours)
    for at_s in curve.incidents_s:
        canvas.draw_column(_find_x(at_s, curve.hours), TOP, HEIGHT - BOTTOM, INCIDENT)
    before: tuple[int, int] | None = None
    for time, low, mean, high in zip(curve.at_s, curve.low, curve.mean, curve.high, strict=True):
        if time is None or mean is None:
            before = None
            continue
        x, y = _find_x(time, curve.hours), _find_y(mean, scale)
        for column in range(x if before is None else min(before[0] + 1, x), x + 1):
            canvas.draw_column(column, _find_y(mean if high is None else high, scale), y, BAND)
            canvas.draw_column(column, y, _find_y(mean if low is None else low, scale), BAND)
        canvas.draw_line(before or (x, y), (x, y), LINE)
        before = x, y
    return canvas.encode()


def _find_scale(curve: LossCurve) -> tuple[float, float] | None:
    """Return the loss at the bottom and at the top, with room for most of the band."""
    means = [mean for at_s, mean in zip(curve.at_s, curve.mean, strict=True) if at_s is not None and mean is not None]
    if len(means) < 2:
        return None
    bottom, top = min(means), max(means)
    reach = SPIKE_SPANS * (top - bottom)
    low = min((value for value in curve.low if value is not None), default=bottom)
    high = max((value for value in curve.high if value is not None), default=top)
    bottom, top = max(low, bottom - reach), min(high, top + reach)
    if not top - bottom > 1e-9 * max(abs(top), abs(bottom), 1e-300):
        bottom, top = bottom - max(abs(bottom), 1e-6) / 2, top + max(abs(top), 1e-6) / 2
    return (bottom, top) if math.isfinite(top - bottom) else None


def _find_x(at_s: float, hours: float) -> int:
    share = min(1.0, max(0.0, at_s / (hours * 3600)))
    return LEFT + round(share * (WIDTH - LEFT - RIGHT - 1))


def _find_y(loss: float, scale: tuple[float, float]) -> int:
    share = min(1.0, max(0.0, (loss - scale[0]) / (scale[1] - scale[0])))
    return HEIGHT - BOTTOM - 1 - round(share * (HEIGHT - TOP - BOTTOM - 1))


def _draw_frame(canvas: _Canvas, scale: tuple[float, float], hours: float) -> None:
    for number in range(GRID_LINES + 1):
        loss = scale[0] + (scale[1] - scale[0]) * number / GRID_LINES
        y = _find_y(loss, scale)
        canvas.draw_line((LEFT, y), (WIDTH - RIGHT - 1, y), GRID)
        canvas.write_before(f"{loss:.3g}".rjust(8), LEFT - 6, y - GLYPH_HEIGHT, TEXT)
    for number in range(3):
        ago = hours * (2 - number) / 2
        x = _find_x((hours - ago) * 3600, hours)
        canvas.draw_column(x, TOP, HEIGHT - BOTTOM, GRID)
        canvas.write_before(f"-{ago:g} h" if ago else "0 h", min(x + 22, WIDTH - RIGHT), HEIGHT - BOTTOM + 8, TEXT)
    canvas.write_before("loss", LEFT + 32, 8, TEXT)


class _Canvas(Canvas):
    """The chart of a curve, which stays on top."""

    def __init__(self) -> None:
        super().__init__(WIDTH, HEIGHT, PALETTE)

    def draw_column(self, x: int, y: int, until_y: int, color: int) -> None:
        """Color a column of pixels, except where the curve is."""
        for row in range(min(y, until_y), max(y, until_y) + 1):
            if self.pixels[row * WIDTH + x] != LINE:
                self.pixels[row * WIDTH + x] = color

    def draw_line(self, begin: tuple[int, int], end: tuple[int, int], color: int) -> None:
        """Draw a line, two pixels high."""
        (x, y), (end_x, end_y) = begin, end
        steps = max(abs(end_x - x), abs(end_y - y), 1)
        for step in range(steps + 1):
            place = (y + round((end_y - y) * step / steps)) * WIDTH + x + round((end_x - x) * step / steps)
            self.pixels[place] = self.pixels[place - WIDTH] = color

    def write_before(self, text: str, right: int, top: int, color: int) -> None:
        """Write a text that ends at `right`."""
        self.write(text, right - measure(text), top, color)
