"""Draws what a tune came to: the pace before and after, and what each adopted setting gains at least and at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from supervisor.cli.table import Cell, Pen
from supervisor.core.reports.canvas import GLYPH_HEIGHT, GLYPH_SCALE, Canvas, measure
from supervisor.core.sanitize import one_line

CELLS = 40
"""Of the longest bar on a terminal."""
LABEL_MOST = 32
"""Characters of a label in a picture."""
PALETTE = ((255, 255, 255), (90, 90, 90), (173, 205, 240), (21, 88, 176))
PAPER, TEXT, RANGE, PROVEN = range(len(PALETTE))
WIDTH, MARGIN, ROW, BAR = 760, 12, 24, 14
"""Pixels: of a picture, around it, from one bar to the next, and a bar's height."""


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


def plot(report: dict[str, Any], pen: Pen) -> str:
    """Return the bars as lines for a terminal, solid up to what is gained at least; empty where there are none."""
    rows = []
    for bar in list_bars(report):
        solid = round(bar.low * CELLS)
        blocks = "█" * solid + "▒" * (round(bar.high * CELLS) - solid)
        rows.append([Cell(one_line(bar.label)), Cell(bar.shown, right=True), Cell(blocks)])
    return pen.table(("PACE, GAIN", "", "AT LEAST █, AT MOST ▒"), rows) if rows else ""


def draw(report: dict[str, Any]) -> bytes:
    """Return the bars as a PNG, dark up to what is gained at least."""
    bars = list_bars(report) or [Bar(label="nothing was adopted", shown="", low=0.0, high=0.0)]
    canvas = Canvas(WIDTH, 2 * MARGIN + ROW * (1 + len(bars)), PALETTE)
    below = (BAR - GLYPH_HEIGHT * GLYPH_SCALE) // 2
    canvas.write(f"tune of {report['job']}".upper(), MARGIN, MARGIN + below, TEXT)
    labels = [bar.label[:LABEL_MOST].upper() for bar in bars]
    shown = [bar.shown.upper() for bar in bars]
    numbers = MARGIN + max(map(measure, labels)) + MARGIN
    left = numbers + max(map(measure, shown)) + MARGIN
    for number, bar in enumerate(bars, 1):
        y, length = MARGIN + ROW * number, WIDTH - MARGIN - left
        canvas.write(labels[number - 1], MARGIN, y + below, TEXT)
        canvas.write(shown[number - 1], left - MARGIN - measure(shown[number - 1]), y + below, TEXT)
        canvas.fill((left, y), (round(bar.high * length), BAR), RANGE)
        canvas.fill((left, y), (round(bar.low * length), BAR), PROVEN)
    return canvas.encode()
