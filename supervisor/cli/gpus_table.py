"""Writes readings of cards as a table with remarks below; it reads nothing and judges nothing but the obvious."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.cli.sparkline import sparkline
from supervisor.cli.table import Cell, Pen
from supervisor.cli.words import number, size
from supervisor.core.harmless import one_line
from supervisor.core.readings import GpuProcess, GpuReading

HEAD = ("GPU", "USE", "MEMORY", "OF", "EDGE", "JUNC", "MEM", "POWER", "CAP", "CLOCK", "FAN", "BY", "NAME")
_HOT_C = 95.0
_ASLEEP = ("suspended", "suspending")


def lines(found: Sequence[GpuReading], pen: Pen, use: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Return the table; `use` holds each card's last shares of time at work, drawn where there are several."""
    text = pen.table(HEAD, [_row(one) for one in found]).splitlines()
    for one in found:
        drawn = use.get(one.gpu, ())
        if len(drawn) > 1:
            text.append(f"  {one.gpu}  {sparkline(tuple(drawn), 100.0)}")
    for one in found:
        text += [f"  {one.gpu}  {pen.paint(remark, style)}" for remark, style in _remarks(one)]
        text += [f"  {one.gpu}  {_process(process)}" for process in one.processes or ()]
    return text


def _row(card: GpuReading) -> list[Cell]:
    name = " ".join(part for part in (card.name, card.gfx_version) if part)
    asleep = card.runtime_status in _ASLEEP
    return [
        Cell(one_line(card.gpu), "bold"),
        Cell("asleep" if asleep else number(card.gpu_busy_percent, "{:.0f} %"), right=True),
        Cell(size(card.memory_used_bytes), right=True),
        Cell(size(card.memory_total_bytes), right=True),
        _heat(card.edge_c),
        _heat(card.junction_c),
        _heat(card.memory_c),
        Cell(number(card.power_w, "{:.0f} W"), right=True),
        Cell(number(card.power_cap_w, "{:.0f} W"), right=True),
        Cell(number(None if card.sclk_hz is None else card.sclk_hz / 1e6, "{:.0f} MHz"), right=True),
        Cell(number(card.fan_rpm, "{} rpm"), right=True),
        Cell(one_line(card.source)),
        Cell(one_line(name or "-")),
    ]


def _heat(value: float | None) -> Cell:
    return Cell(number(value, "{:.0f} C"), "red" if value is not None and value >= _HOT_C else None, right=True)


def _remarks(card: GpuReading) -> list[tuple[str, str | None]]:
    """Return what a table has no room for and nobody may overlook."""
    found: list[tuple[str, str | None]] = []
    if card.throttled_by:
        found.append((f"clocks held down by {', '.join(map(one_line, card.throttled_by))}", "yellow"))
    if card.ecc_uncorrectable:
        found.append((f"{card.ecc_uncorrectable} memory errors that could not be corrected", "red"))
    if card.ecc_correctable:
        found.append((f"{card.ecc_correctable} memory errors corrected", "yellow"))
    if card.pcie_replays:
        found.append((f"{card.pcie_replays} PCIe replays since the driver was loaded", "yellow"))
    if card.compute_partition and card.compute_partition != "SPX":
        split = f"split: {one_line(card.compute_partition)}, memory {one_line(card.memory_partition or '-')}"
        found.append((split, None))
    if card.unified_memory:
        found.append(("shares the machine's memory: MEMORY is VRAM and GTT together", None))
    return found


def _process(process: GpuProcess) -> str:
    parts = [f"pid {process.pid}", one_line(process.name or "-"), f"VRAM {size(process.vram_bytes)}"]
    if process.gtt_bytes:
        parts.append(f"GTT {size(process.gtt_bytes)}")
    if process.engine_s:
        parts.append(f"{process.engine_s:.0f} s on the engines")
    return "  ".join(parts)
