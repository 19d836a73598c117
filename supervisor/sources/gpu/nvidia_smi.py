"""Reads GPUs through `nvidia-smi --query-gpu`, the fallback for NVML, and parses its saved CSV.

Columns are found by name. `N/A`, `[N/A]`, `[Not Supported]`, `[Unknown Error]` and similar texts are None. The field
`clocks_throttle_reasons` is called `clocks_event_reasons` since driver 535, which still accepts the old name in a
query.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess, GpuReading
from supervisor.sources.gpu.nvidia_presence import asleep, require_driver
from supervisor.sources.gpu.sensor_values import bytes_of, celsius, count, hertz, number, pci_address, percent, watts
from supervisor.sources.gpu.source import SourceSilentError
from supervisor.sources.gpu.tool import Tool

QUERY = (
    "index", "pci.bus_id", "name", "uuid", "utilization.gpu", "utilization.memory", "memory.used", "memory.total",
    "temperature.gpu", "temperature.memory", "power.draw", "power.limit", "clocks.current.sm",
    "clocks.current.memory", "pcie.link.width.current", "pcie.link.gen.current",
    "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total", "pstate",
    "clocks_throttle_reasons.active",
)  # fmt: skip
APPS = "--query-compute-apps=gpu_bus_id,pid,process_name,used_gpu_memory"
FORMAT = "--format=csv"
_GENERATIONS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_REASONS = {
    2: "applications_clocks", 4: "power", 8: "slowdown", 16: "sync_boost", 32: "thermal", 64: "thermal_hardware",
    128: "power_brake",
}  # fmt: skip
"""Bits of the clock event reasons (NVML); 1 means idle, which is not a limit."""
Row = Mapping[str, str]


class NvidiaSmi:
    """The tool `nvidia-smi`, run twice per reading: for the GPUs and for their processes."""

    name: ClassVar[str] = "nvidia-smi"
    vendor: ClassVar[str] = "nvidia"
    wait_s: ClassVar[float] = 0.0

    def __init__(
        self,
        command: Sequence[str] = ("nvidia-smi",),
        interval_s: float = 5.0,
        deadline_s: float = 10.0,
        sys_root: Path = Path("/sys"),
        control: Path = Path("/dev/nvidiactl"),
    ) -> None:
        self._tool = Tool(command, deadline_s / 2)
        self._sys_root, self._control = sys_root, control
        self.interval_s = interval_s
        self.deadline_s = deadline_s

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Run the tool, unless all GPUs are suspended. Raises SourceSilentError without driver, tool or GPU."""
        require_driver(self._sys_root, self._control)
        sleeping = asleep(self._sys_root, now, self.name)
        if sleeping:
            return sleeping
        readings = parse(self._tool.run(f"--query-gpu={','.join(QUERY)}", FORMAT), now)
        if not readings:
            raise SourceSilentError("nvidia-smi lists no GPU")
        return with_processes(readings, self._tool.run(APPS, FORMAT))

    def close(self) -> None:
        """Do nothing: no resource is kept open."""


def rows(text: str) -> Iterator[Row]:
    """Yield the rows of nvidia-smi's CSV by column name without its unit; nothing if the text has no header."""
    try:
        lines = list(csv.reader(io.StringIO(text), skipinitialspace=True, strict=True))
    except csv.Error:
        return
    if not lines or not any(name in ("name", "gpu_name", "pid", "index") for name in map(_column_name, lines[0])):
        return
    names = [_column_name(name) for name in lines[0]]
    for line in lines[1:]:
        if len(line) == len(names):
            yield dict(zip(names, (cell.strip() for cell in line), strict=True))


def parse(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each GPU of a `--query-gpu` table that has an address."""
    return tuple(reading for row in rows(text) if (reading := _build_reading(row, at)) is not None and reading.gpu)


def parse_saved(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return the readings of a saved `--query-gpu` table, or of `--query-compute-apps` with processes only."""
    listed = tuple(rows(text))
    if any("pid" in row for row in listed):
        return _group_by_gpu(_list_apps(listed), at)
    readings = (_build_reading(row, at) for row in listed)
    return tuple(
        item if item.gpu else replace(item, gpu=f"gpu{item.index if item.index is not None else place}")
        for place, item in enumerate(reading for reading in readings if reading is not None)
    )


def with_processes(readings: tuple[GpuReading, ...], text: str) -> tuple[GpuReading, ...]:
    """Return the readings with the processes of a `--query-compute-apps` table."""
    found = list(_list_apps(rows(text)))
    return tuple(
        replace(reading, processes=tuple(process for gpu, process in found if gpu == reading.gpu))
        for reading in readings
    )


def address(text: object) -> str | None:
    """Return the PCI address in the kernel's form: the tool writes the domain with eight digits."""
    found = pci_address(text)
    return found[4:] if found and len(found) == 16 and found.startswith("0000") else found


def limits(mask: str | None) -> tuple[str, ...] | None:
    """Return the active limits from the hexadecimal bit mask of clock event reasons."""
    try:
        value = int(mask, 16) if mask else None
    except ValueError:
        return None
    return None if value is None or value < 0 else tuple(name for bit, name in _REASONS.items() if value & bit)


def _column_name(name: str) -> str:
    return name.partition(" [")[0].strip()


def _list_apps(table: Iterator[Row] | Sequence[Row]) -> Iterator[tuple[str, GpuProcess]]:
    for row in table:
        pid = count(number(row.get("pid")))
        gpu = address(row.get("gpu_bus_id"))
        if pid and gpu:
            name = row.get("process_name")
            yield gpu, GpuProcess(pid=pid, name=name[:200] if name else None, vram_bytes=size(row, "used_gpu_memory"))


def _group_by_gpu(apps: Iterator[tuple[str, GpuProcess]], at: Moment) -> tuple[GpuReading, ...]:
    found: dict[str, list[GpuProcess]] = {}
    for gpu, process in apps:
        found.setdefault(gpu, []).append(process)
    return tuple(
        GpuReading(at=at, gpu=gpu, source=NvidiaSmi.name, processes=tuple(processes))
        for gpu, processes in found.items()
    )


def _build_reading(row: Row, at: Moment) -> GpuReading | None:
    gpu = address(row.get("pci.bus_id"))
    index = count(number(row.get("index")))
    name = row.get("name") or row.get("gpu_name")
    if gpu is None and index is None and not name:
        return None
    generation = count(_read_value(row, "pcie.link.gen.current", "pcie.link.gen.gpucurrent"))
    mask = row.get("clocks_event_reasons.active") or row.get("clocks_throttle_reasons.active")
    return GpuReading(
        at=at,
        gpu=gpu or "",
        source=NvidiaSmi.name,
        index=index,
        name=name[:200] if name and not name.startswith("[") else None,
        unique_id=uuid(row.get("uuid")),
        gpu_busy_percent=percent(_read_value(row, "utilization.gpu")),
        memory_busy_percent=percent(_read_value(row, "utilization.memory")),
        vram_used_bytes=size(row, "memory.used"),
        vram_total_bytes=size(row, "memory.total"),
        edge_c=celsius(_read_value(row, "temperature.gpu")),
        memory_c=celsius(_read_value(row, "temperature.memory")),
        power_w=watts(_read_value(row, "power.draw")),
        power_cap_w=watts(_read_value(row, "power.limit", "enforced.power.limit")),
        sclk_hz=_read_clock_hz(row, "clocks.current.sm", "clocks.current.graphics", "clocks.sm", "clocks.gr"),
        mclk_hz=_read_clock_hz(row, "clocks.current.memory", "clocks.mem"),
        performance_level=row["pstate"] if row.get("pstate", "").startswith("P") else None,
        throttled_by=limits(mask),
        pcie_lanes=count(_read_value(row, "pcie.link.width.current")),
        pcie_gts=pcie_gts(generation),
        ecc_correctable=count(_read_value(row, "ecc.errors.corrected.volatile.total")),
        ecc_uncorrectable=count(_read_value(row, "ecc.errors.uncorrected.volatile.total")),
    )


def pcie_gts(generation: int | None) -> float | None:
    """Return the gigatransfers a second and lane of a PCIe generation."""
    return None if generation is None else _GENERATIONS.get(generation)


def uuid(text: object) -> str | None:
    """Return NVIDIA's unique id of a GPU; None if it consists of zeros, as in redacted logs."""
    if not isinstance(text, str) or not text.startswith(("GPU-", "MIG-")) or not text[4:].strip("-0"):
        return None
    return text[:64]


def size(row: Row, column: str) -> int | None:
    """Return the bytes of a cell such as `2566 MiB`; a number without unit is in MiB, as `nounits` prints it."""
    value, _, unit = row.get(column, "").partition(" ")
    return bytes_of(value, unit or "MiB")


def _read_value(row: Row, *columns: str) -> float | None:
    values = (number(row[column].partition(" ")[0]) for column in columns if column in row)
    return next((value for value in values if value is not None), None)


def _read_clock_hz(row: Row, *columns: str) -> int | None:
    return hertz(_read_value(row, *columns))
