"""Reads the machine's memory, load, processor, pressure (PSI) and disks; None for what cannot be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import psutil

from supervisor.children.files_apart import apart
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, HostReading
from supervisor.sources.gpu.sensor_values import celsius, number, percent
from supervisor.sources.kernel_files import read_text

_SOME = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE | re.ASCII)
INODES_MAX = 2**63 - 1
"""Of the record; some file systems that have no fixed number report more."""
_PROCESSORS = ("k10temp", "coretemp", "zenpower", "cpu_thermal")
"""Drivers of processor sensors: AMD, Intel, older AMD, Arm boards."""


def stall_percent(what: str, proc_root: Path = Path("/proc")) -> float | None:
    """Return the percentage of the last ten seconds in which some process waited for `memory`, `io` or `cpu`.

    None if the kernel does not measure pressure (no CONFIG_PSI, or psi=0 on its command line).
    """
    found = _SOME.search(read_text(proc_root / "pressure" / what))
    return percent(number(found[1])) if found else None


class ProcessorHeat:
    """The processor's temperature sensors, searched for once."""

    def __init__(self, sys_root: Path = Path("/sys")) -> None:
        self._sensors = tuple(
            sensor
            for folder in sorted((sys_root / "class/hwmon").glob("hwmon*"))
            if read_text(folder / "name").strip() in _PROCESSORS
            for sensor in sorted(folder.glob("temp*_input"))
        )

    def read_c(self) -> float | None:
        """Return the highest temperature in C, None without sensors (most virtual machines)."""
        values = (number(read_text(sensor).strip()) for sensor in self._sensors)
        known = [heat for value in values if value is not None and (heat := celsius(value / 1000)) is not None]
        return max(known, default=None)


def read_host(now: Moment, paths: Iterable[Path], cpu_percent: float | None = None) -> HostReading:
    """Read the machine and the file systems of `paths`; a missing path has no entry in `disks`."""
    total_bytes, available_bytes = _read_memory()
    return HostReading(
        at=now,
        memory_total_bytes=total_bytes,
        memory_available_bytes=available_bytes,
        swap_used_bytes=_read_swap_used_bytes(),
        load_1m=_read_load_1m(),
        cpu_percent=cpu_percent,
        memory_stall_percent=stall_percent("memory"),
        io_stall_percent=stall_percent("io"),
        disks=tuple(disk for path in paths if (disk := read_disk(path)) is not None),
    )


class HostWatch:
    """The machine, read repeatedly; processor use is known from the second reading on."""

    def __init__(self, paths: Iterable[Path], sys_root: Path = Path("/sys")) -> None:
        self._paths = tuple(paths)
        self._heat = ProcessorHeat(sys_root)
        self._busy_s: tuple[float, float] | None = None

    def read(self, now: Moment) -> HostReading:
        """Read the machine; `cpu_percent` is the busy share of all processors since the last reading."""
        before, self._busy_s = self._busy_s, _read_busy_and_total_s()
        percent = None
        if before and self._busy_s and self._busy_s[1] > before[1]:
            percent = 100 * (self._busy_s[0] - before[0]) / (self._busy_s[1] - before[1])
            percent = min(100.0, max(0.0, percent))
        return replace(read_host(now, self._paths, percent), cpu_c=self._heat.read_c())


def read_disk(path: Path) -> DiskReading | None:
    """Return the bytes and files that an unprivileged user can write to the file system of `path`, None if unknown."""
    try:
        stat = apart(os.statvfs, path)
    except OSError:
        return None
    counts_inodes = stat.f_files > 0
    return DiskReading(
        path=str(path),
        free_bytes=stat.f_bavail * stat.f_frsize,
        total_bytes=stat.f_blocks * stat.f_frsize,
        free_inodes=min(stat.f_favail, INODES_MAX) if counts_inodes else None,
        total_inodes=min(stat.f_files, INODES_MAX) if counts_inodes else None,
    )


def _read_memory() -> tuple[int | None, int | None]:
    try:
        memory = psutil.virtual_memory()
    except (OSError, RuntimeError):
        return None, None
    return int(memory.total), int(memory.available)


def _read_swap_used_bytes() -> int | None:
    try:
        return int(psutil.swap_memory().used)
    except (OSError, RuntimeError):
        return None


def _read_load_1m() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _read_busy_and_total_s() -> tuple[float, float] | None:
    try:
        times = psutil.cpu_times()
    except (OSError, RuntimeError):
        return None
    # User time includes guest time.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total
