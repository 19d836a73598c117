"""Draws the measurements of `bench conv2d` as an SVG bar chart, forward and backward."""

from __future__ import annotations

from html import escape
from typing import Any

from supervisor.cli.bench.report import title
from supervisor.core.sanitize import one_line

COLORS = ("#1b6ca8", "#5aa469", "#d08c2e", "#b5483a", "#7b5ea7", "#66757f")
BAR, GAP, LEFT, WIDTH, LABEL = 14, 12, 330, 520, 110
"""Pixels: a bar's height, between layers, for names, for the longest bar, for its number."""

Line = dict[str, Any]


def picture(lines: list[Line]) -> str:
    """Return an SVG document: one group of bars per layer and one for the training step, each group with its own scale.

    The dark part of a bar is the forward pass; a failed measurement has its name and no bar.
    """
    device = next(line for line in lines if line["kind"] == "device")
    names = list(dict.fromkeys(line["algorithm"] for line in lines if "algorithm" in line))
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    drawn: list[str] = []
    text = f"{device['name']}, torch {device['torch']}: ms, forward (dark) + backward"
    y = _draw_legend(drawn, one_line(text), colors)
    for heading, group in _group_by_layer(lines):
        y = _draw_group(drawn, y, heading, group, colors)
    width = LEFT + WIDTH + LABEL
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{width}" height="{y}" fill="white"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _group_by_layer(lines: list[Line]) -> list[tuple[str, list[Line]]]:
    layers = [line for line in lines if line["kind"] == "layer"]
    groups = []
    for number in dict.fromkeys(line["layer"] for line in layers):
        group = [line for line in layers if line["layer"] == number]
        count = group[0]["count"]
        groups.append((title(group[0]) + (f", {count} times" if count > 1 else ""), group))
    if steps := [line for line in lines if line["kind"] == "step"]:
        groups.append(("training step", steps))
    return groups


def _draw_legend(drawn: list[str], text: str, colors: dict[str, str]) -> int:
    drawn.append(_text_element(10, 20, text, "font-size='13' font-weight='bold'"))
    x = 10
    for name, color in colors.items():
        drawn.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{color}"/>')
        drawn.append(_text_element(x + 14, 39, one_line(name)))
        x += 30 + 7 * len(name)
    return 52


def _draw_group(drawn: list[str], y: int, heading: str, group: list[Line], colors: dict[str, str]) -> int:
    """Draw one group from `y` downwards and return where the next begins."""
    longest = max((_total_ms(line) or 0.0 for line in group), default=0.0)
    drawn.append(_text_element(10, y + BAR - 3, heading))
    for line in group:
        total = _total_ms(line)
        if total is None or longest <= 0:
            drawn.append(_text_element(LEFT, y + BAR - 3, f"{one_line(line['algorithm'])}: failed", "fill='#b5483a'"))
        else:
            widths = [ms / longest * WIDTH for ms in (line.get("forward_ms", total), total)]
            _draw_bar(drawn, y, colors[line["algorithm"]], *widths)
            drawn.append(_text_element(LEFT + widths[1] + 4, y + BAR - 3, f"{total:.2f}"))
        y += BAR
    return y + GAP


def _draw_bar(drawn: list[str], y: int, color: str, forward: float, total: float) -> None:
    """Draw a bar of two widths in pixels, the forward pass darker."""
    place = f'x="{LEFT}" y="{y}" height="{BAR - 2}" fill="{color}"'
    drawn.append(f'<rect {place} width="{total:.1f}" fill-opacity="0.55"/>')
    drawn.append(f'<rect {place} width="{min(forward, total):.1f}"/>')


def _total_ms(line: Line) -> float | None:
    value = line.get("total_ms", line.get("step_ms"))
    return None if value is None else float(value)


def _text_element(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(text)}</text>'
