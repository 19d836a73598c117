"""Formats GPU readings as a table, with warnings and processes below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.cli.formatting import number, size
from supervisor.cli.gpus.sparkline import sparkline
from supervisor.cli.table import Cell, Pen
from supervisor.core.measured import Column, measures_of
from supervisor.core.readings import GpuProcess, GpuReading
from supervisor.core.sanitize import one_line

COLUMNS = tuple((name, shown.column) for name, shown in measures_of(GpuReading).items() if shown.column is not None)
"""The measured fields that are declared with a column."""
HEAD = ("GPU", "USE", "MEMORY", "OF", *(column.heading for _, column in COLUMNS), "BY", "NAME")
_ASLEEP = ("suspended", "suspending")


def lines(found: Sequence[GpuReading], pen: Pen, use: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Return the table; `use` holds each GPU's recent use in percent, drawn if there are several values."""
    text = pen.table(HEAD, [_gpu_row(reading) for reading in found]).splitlines()
    for reading in found:
        drawn = use.get(reading.gpu, ())
        if len(drawn) > 1:
            text.append(f"  {reading.gpu}  {sparkline(tuple(drawn), 100.0)}")
    for reading in found:
        text += [f"  {reading.gpu}  {pen.paint(remark, style)}" for remark, style in _list_remarks(reading)]
        text += [f"  {reading.gpu}  {_describe_process(process)}" for process in reading.processes or ()]
    return text


def _gpu_row(gpu: GpuReading) -> list[Cell]:
    name = " ".join(part for part in (gpu.name, gpu.gfx_version) if part)
    asleep = gpu.runtime_status in _ASLEEP
    return [
        Cell(one_line(gpu.gpu), "bold"),
        Cell("asleep" if asleep else number(gpu.gpu_busy_percent, "{:.0f} %"), right=True),
        Cell(size(gpu.memory_used_bytes), right=True),
        Cell(size(gpu.memory_total_bytes), right=True),
        *(_measured_cell(getattr(gpu, name), column) for name, column in COLUMNS),
        Cell(one_line(gpu.source)),
        Cell(one_line(name or "-")),
    ]


def _measured_cell(value: float | None, column: Column) -> Cell:
    hot = value is not None and column.hot_at is not None and value >= column.hot_at
    return Cell(column.format(value), "red" if hot else None, right=True)


def _list_remarks(gpu: GpuReading) -> list[tuple[str, str | None]]:
    """Return the warnings and notes that are shown below the table."""
    found: list[tuple[str, str | None]] = []
    if gpu.throttled_by:
        found.append((f"clocks throttled by {', '.join(map(one_line, gpu.throttled_by))}", "yellow"))
    if gpu.ecc_uncorrectable:
        found.append((f"{gpu.ecc_uncorrectable} uncorrectable memory errors", "red"))
    if gpu.ecc_correctable:
        found.append((f"{gpu.ecc_correctable} corrected memory errors", "yellow"))
    if gpu.pcie_replays:
        found.append((f"{gpu.pcie_replays} PCIe replays since the driver was loaded", "yellow"))
    if gpu.compute_partition and gpu.compute_partition != "SPX":
        split = f"partition: {one_line(gpu.compute_partition)}, memory {one_line(gpu.memory_partition or '-')}"
        found.append((split, None))
    if gpu.unified_memory:
        found.append(("unified memory: MEMORY is the sum of VRAM and GTT", None))
    return found


def _describe_process(process: GpuProcess) -> str:
    parts = [f"pid {process.pid}", one_line(process.name or "-"), f"VRAM {size(process.vram_bytes)}"]
    if process.gtt_bytes:
        parts.append(f"GTT {size(process.gtt_bytes)}")
    if process.engine_s:
        parts.append(f"{process.engine_s:.0f} s on the engines")
    return "  ".join(parts)
