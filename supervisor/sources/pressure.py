"""Reads what the machine's processes wait for (PSI) and how hot its processor is; it opens no device."""

from __future__ import annotations

import re
from pathlib import Path

from supervisor.sources.plausible import celsius, number, percent

_SOME = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE | re.ASCII)
_PROCESSORS = ("k10temp", "coretemp", "zenpower", "cpu_thermal")
"""Drivers of processor sensors: AMD's, Intel's, an older one of AMD's, and those of boards with Arm."""


def stall_percent(what: str, proc_root: Path = Path("/proc")) -> float | None:
    """Return the share of the last ten seconds in which some process waited for `memory`, `io` or `cpu`.

    None where the kernel counts no pressure (CONFIG_PSI, or psi=0 on its command line).
    """
    found = _SOME.search(_text(proc_root / "pressure" / what))
    return percent(number(found[1])) if found else None


class ProcessorHeat:
    """The processor's sensors, found once."""

    def __init__(self, sys_root: Path = Path("/sys")) -> None:
        self._sensors = tuple(
            sensor
            for folder in sorted((sys_root / "class/hwmon").glob("hwmon*"))
            if _text(folder / "name").strip() in _PROCESSORS
            for sensor in sorted(folder.glob("temp*_input"))
        )

    def read_c(self) -> float | None:
        """Return the hottest of them, None where there are none (most virtual machines)."""
        values = (number(_text(sensor).strip()) for sensor in self._sensors)
        known = [heat for value in values if value is not None and (heat := celsius(value / 1000)) is not None]
        return max(known, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
