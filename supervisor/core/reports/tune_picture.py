"""Draws what a tune came to: the pace before and after, and what each adopted setting gains at least and at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from supervisor.core.reports.canvas import GLYPH_HEIGHT, GLYPH_SCALE, Canvas, measure
from supervisor.core.sanitize import one_line

LABEL_MOST, BARS_MOST = 32, 40
"""Characters of a text and bars in a picture."""
PALETTE = ((255, 255, 255), (90, 90, 90), (173, 205, 240), (21, 88, 176))
DARK_PALETTE = ((18, 23, 28), (178, 190, 201), (48, 92, 128), (86, 180, 233))
PAPER, TEXT, RANGE, PROVEN = range(len(PALETTE))
WIDTH, MARGIN, ROW, BAR = 760, 12, 24, 14
"""Pixels: of a picture, around it, from one bar to the next, and a bar's height."""
BELOW = (BAR - GLYPH_HEIGHT * GLYPH_SCALE) // 2
"""The top of a bar, to that of the text next to it."""
STACKED_BELOW, STACKED_ROW = 520, 44
"""A narrower picture has each bar below its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A line of the plot; `low` and `high` are shares of the longest bar of its kind."""

    label: str
    shown: str
    low: float
    high: float


def list_bars(report: dict[str, Any]) -> list[Bar]:
    """Return the bars of a tune's report, none where nothing was adopted."""
    rates = report["samples_per_s"]
    bars = []
    if rates["before"] and rates["after"]:
        most = max(rates["before"], rates["after"])
        for name in ("before", "after"):
            share = rates[name] / most
            bars.append(Bar(label=name, shown=f"{rates[name]:,.1f} {report['unit']}/s", low=share, high=share))
    highest = max((row["high"] for row in report["adopted"]), default=0.0)
    for row in report["adopted"]:
        low, high = (max(0.0, row[name]) / highest if highest > 0 else 0.0 for name in ("low", "high"))
        label = f"{row['knob']} = {write_value(row['value'])}"
        bars.append(Bar(label=label, shown=f"{row['gain']:+.1%}", low=min(low, high), high=high))
    return bars if report["adopted"] else []


def write_value(value: object) -> str:
    """Return a setting as it is written in a table."""
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else one_line(str(value))


def draw(report: dict[str, Any], *, width: int = WIDTH, is_dark: bool = False) -> bytes:
    """Return the bars as a PNG, dark up to what is gained at least; `is_dark`: for a dark page, the other way round."""
    bars = list_bars(report)[:BARS_MOST] or [Bar(label="nothing was adopted", shown="", low=0.0, high=0.0)]
    labels = [bar.label[:LABEL_MOST].upper() for bar in bars]
    shown = [bar.shown[:LABEL_MOST].upper() for bar in bars]
    is_stacked = width < STACKED_BELOW
    row = STACKED_ROW if is_stacked else ROW
    numbers = MARGIN + max(map(measure, labels)) + MARGIN
    after = max(map(measure, shown))
    left = MARGIN if is_stacked else numbers + after + MARGIN
    canvas = Canvas(width, 2 * MARGIN + ROW + row * len(bars), DARK_PALETTE if is_dark else PALETTE)
    canvas.write(f"tune of {report['job']}".upper(), MARGIN, MARGIN + BELOW, TEXT)
    for number, bar in enumerate(bars):
        y, length = MARGIN + ROW + row * number, width - MARGIN - left
        right = width - MARGIN if is_stacked else numbers + after
        canvas.write(labels[number], MARGIN, y + BELOW, TEXT)
        canvas.write(shown[number], right - measure(shown[number]), y + BELOW, TEXT)
        y += row - ROW
        canvas.fill((left, y), (round(bar.high * length), BAR), RANGE)
        canvas.fill((left, y), (round(bar.low * length), BAR), PROVEN)
    return canvas.encode()
