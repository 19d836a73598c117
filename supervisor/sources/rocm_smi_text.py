"""Reads the tables that `rocm-smi` prints for people; for saved text only, since the source asks for JSON.

Columns by name from the header of ROCm 2 to 7, whose words have stayed while their places have moved.
"""

from __future__ import annotations

import re

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.plausible import celsius, count, number, pci_address, percent, watts
from supervisor.sources.rocm_smi import RocmSmi

_HARDWARE = re.compile(
    r"^(\d{1,4}) +(?:\d+ +)?0x[0-9a-f]+ +(?:\S+ +)?(?:(gfx[0-9a-f]{3,6}) +)?.*? "
    r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?: +(\d+))? *$",
    re.ASCII,
)
_DEVICE = re.compile(r"^(\d{1,4}) +(\S.*)$", re.ASCII)
_KINDS = {
    "temperature": re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?)(?:\N{DEGREE SIGN}C|c)(?!\w)"),
    "watts": re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)W(?!\w)"),
    "clock": re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)M[Hh]z(?!\w)|(?<= )None(?= )"),
    "percent": re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)%"),
}
_PARTITIONS = re.compile(r"(?<!\S)(NPS\d), (SPX|DPX|TPX|QPX|CPX)(?:, (\d+))?(?!\S)")


def parse_hardware(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each row of `rocm-smi --showhw`: what the card is, and which part of it."""
    rows = (_HARDWARE.match(line) for line in text.splitlines())
    return tuple(
        GpuReading(
            at=at,
            gpu=pci_address(row[3]) or "",
            source=RocmSmi.name,
            index=int(row[1]),
            gfx_version=row[2],
            partition=count(number(row[4])),
        )
        for row in rows
        if row is not None
    )


def parse_concise(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each row of the table that `rocm-smi` prints without arguments."""
    readings = []
    head: list[str] = []
    for line in text.splitlines():
        if line.startswith(("Device ", "GPU ")):
            head = [line]
        elif head and line.startswith(" ") and len(head) == 1 and "(" in line:
            head.append(line)
        elif head and (row := _DEVICE.match(line)):
            readings.append(_concise(int(row[1]), line, " ".join(head), at))
    return tuple(readings)


def _concise(index: int, row: str, head: str, at: Moment) -> GpuReading:
    found = {kind: [_first(one) for one in pattern.finditer(row)] for kind, pattern in _KINDS.items()}
    heat, power = _nth(found["temperature"], 0), found["watts"]
    is_junction, shares = "unction" in head, _shares(found["percent"], head)
    partitions = _PARTITIONS.search(row)
    has_cap = "PwrCap" in head
    return GpuReading(
        at=at,
        gpu=f"gpu{index}",
        source=RocmSmi.name,
        index=index,
        junction_c=celsius(heat) if is_junction else None,
        edge_c=None if is_junction else celsius(heat),
        power_w=watts(_nth(power, 0)) if not has_cap or len(power) == 2 else None,
        power_cap_w=watts(_nth(power, -1)) if has_cap else None,
        sclk_hz=_hertz(_nth(found["clock"], 0)),
        mclk_hz=_hertz(_nth(found["clock"], 1)),
        vram_used_percent=percent(shares.get("VRAM%")),
        gpu_busy_percent=percent(shares.get("GPU%")),
        memory_partition=partitions[1] if partitions else None,
        compute_partition=partitions[2] if partitions else None,
        partition=count(number(partitions[3])) if partitions and partitions[3] else None,
    )


def _shares(values: list[float | None], head: str) -> dict[str, float | None]:
    """Return the last columns by name: what stands before them (`Fan`) may be `N/A`, they end the row in every form."""
    names = [name for name in ("VRAM%", "GPU%") if name in head]
    names.sort(key=head.index)
    return dict(zip(names, values[-len(names) :], strict=True)) if names and len(values) >= len(names) else {}


def _first(found: re.Match[str]) -> float | None:
    return number(found[1])


def _nth(values: list[float | None], place: int) -> float | None:
    return values[place] if -len(values) <= place < len(values) else None


def _hertz(mega: float | None) -> int | None:
    return None if mega is None else count(number(mega * 1e6))
