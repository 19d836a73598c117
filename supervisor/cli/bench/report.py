"""Formats the measurements of `bench conv2d` as tables."""

from __future__ import annotations

import math
from typing import Any

from supervisor.cli.table import Cell, Pen
from supervisor.core.sanitize import one_line

MIB = 1 << 20
BAR_CELLS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"

Line = dict[str, Any]


def report(pen: Pen, lines: list[Line], hours: dict[str, float], *, bars: bool) -> str:
    """Return the tables; with `bars` also a column of bars."""
    device = next(line for line in lines if line["kind"] == "device")
    parts = [one_line(f"{device['name']}, torch {device['torch']}, {device['python']}"), ""]
    layers = [line for line in lines if line["kind"] == "layer"]
    names = list(dict.fromkeys(line["algorithm"] for line in layers))
    parts += ["Forward + backward, ms:", _each_layer(pen, layers, names)]
    parts += ["", "All layers:", _totals_table(pen, layers, names, bars=bars)]
    if steps := [line for line in lines if line["kind"] == "step"]:
        parts += ["", "Training step:", _steps_table(pen, steps, hours, bars=bars)]
    if repeated := [line for line in lines if line["kind"] == "stability"]:
        parts += ["", "Stability:", _stability_table(pen, repeated)]
    return "\n".join(parts)


def title(line: Line) -> str:
    """Return a short description of a layer: sizes of input and weight, stride."""
    stride = line["stride"]
    each = set(stride) if isinstance(stride, list) else {stride}
    by = "x".join(map(str, stride)) if len(each) > 1 else str(each.pop())
    return f"{'x'.join(map(str, line['input']))} by {'x'.join(map(str, line['weight']))} s{by}"


def bar(value: float | None, highest: float) -> str:
    """Return a row of blocks, BAR_CELLS long for `highest`; empty for a missing value or 0."""
    if value is None or highest <= 0 or not math.isfinite(value):
        return ""
    eighths = max(1, round(value / highest * BAR_CELLS * 8)) if value > 0 else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _each_layer(pen: Pen, layers: list[Line], names: list[str]) -> str:
    rows = []
    for number in dict.fromkeys(line["layer"] for line in layers):
        of_layer = {line["algorithm"]: line for line in layers if line["layer"] == number}
        first = next(iter(of_layer.values()))
        passes = [_passes_cell(of_layer[name]) for name in names]
        rows.append([Cell(title(first)), Cell(str(first["count"]), right=True), *passes])
    return pen.table(["layer", "times", *names], rows)


def _totals_table(pen: Pen, layers: list[Line], names: list[str], *, bars: bool) -> str:
    """Return a table of sums over the layers, each counted as often as the model contains it."""
    sums = {name: _sum_layers(layers, name, "total_ms") for name in names}
    highest = max((value for value in sums.values() if value is not None), default=0.0)
    rows = []
    for name in names:
        mine = [line for line in layers if line["algorithm"] == name]
        complete = [line for line in mine if "problem" not in line]
        worst = max((error for line in complete for error in line["errors"]), default=math.nan)
        right = all(line.get("right") for line in mine)
        problem = next((line["problem"] for line in mine if "problem" in line), "")
        verdict = "right" if right else one_line(problem) or "WRONG"
        peak = max((line["peak_bytes"] or 0 for line in complete), default=0) or None
        cells = [Cell(one_line(name))]
        cells += [_number_cell(_sum_layers(layers, name, key)) for key in ("forward_ms", "backward_ms", "total_ms")]
        cells += [_mib_cell(_sum_layers(layers, name, "held_bytes")), _mib_cell(peak), Cell(f"{worst:.1e}", right=True)]
        cells += [Cell(bar(sums[name], highest))] if bars else []
        rows.append([*cells, Cell(verdict, None if right else "red")])
    head = ["algorithm", "forward ms", "backward ms", "total ms", "held MiB", "peak MiB", "error"]
    return pen.table([*head, *(["total"] if bars else []), "against float64"], rows)


def _sum_layers(layers: list[Line], name: str, key: str) -> float | None:
    """Return the sum over the layers, None if one of them is missing."""
    mine = [line for line in layers if line["algorithm"] == name]
    if any(line.get(key) is None for line in mine):
        return None
    return float(sum(line[key] * line["count"] for line in mine))


def _steps_table(pen: Pen, steps: list[Line], hours: dict[str, float], *, bars: bool) -> str:
    highest = max((line.get("step_ms", 0.0) for line in steps), default=0.0)
    rows = [
        [
            Cell(one_line(line["algorithm"])),
            _number_cell(line.get("step_ms")),
            _mib_cell(line.get("peak_bytes")),
            _number_cell(hours.get(line["algorithm"])),
            *([Cell(bar(line.get("step_ms"), highest))] if bars else []),
            Cell(one_line(line.get("problem", "")), "red"),
        ]
        for line in steps
    ]
    return pen.table(["algorithm", "ms", "peak MiB", "hours", *(["step"] if bars else []), ""], rows)


def _stability_table(pen: Pen, repeated: list[Line]) -> str:
    rows = []
    for line in repeated:
        drift, grown = line.get("drift"), line.get("memory_grown_bytes")
        rows.append(
            [
                Cell(one_line(line["algorithm"])),
                Cell(str(line.get("iterations", "-")), right=True),
                *(_number_cell(line.get(key)) for key in ("min_ms", "median_ms", "max_ms")),
                Cell("-" if drift is None else f"{drift:+.1%}", right=True),
                Cell("-" if grown is None else f"{grown / MIB:+.1f}", right=True),
                Cell(_describe_results(line), None if line.get("steady") else "red"),
            ]
        )
    head = ["algorithm", "times", "min ms", "median ms", "max ms", "drift", "memory MiB", "results"]
    return pen.table(head, rows)


def _describe_results(line: Line) -> str:
    if "problem" in line:
        return one_line(line["problem"])
    if not line["finite"]:
        return "NOT FINITE"
    difference = line["difference"]
    verdict = "identical" if difference == 0 else f"differ by {difference:.1e}"
    return verdict if line["steady"] else f"UNSTABLE: {verdict}"


def _passes_cell(line: Line) -> Cell:
    if "problem" in line:
        return Cell("failed", "red", right=True)
    return Cell(f"{line['forward_ms']:.2f} + {line['backward_ms']:.2f} = {line['total_ms']:.2f}", right=True)


def _number_cell(value: float | None) -> Cell:
    return Cell("-" if value is None else f"{value:.2f}", right=True)


def _mib_cell(value: float | None) -> Cell:
    return Cell("-" if value is None else f"{value / MIB:.0f}", right=True)
