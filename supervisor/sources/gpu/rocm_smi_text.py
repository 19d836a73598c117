"""Parses the tables that `rocm-smi` prints; used only for saved text, since the source itself reads JSON.

Columns are found by name in the header: from ROCm 2 to 7 the names are the same but the order differs.
"""

from __future__ import annotations

import re

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.rocm_smi import RocmSmi, reading_of
from supervisor.sources.gpu.sensor_values import celsius, count, hertz, number, pci_address, percent, watts

_HARDWARE = re.compile(
    r"^(\d{1,4}) +(?:\d+ +)?0x[0-9a-f]+ +(?:\S+ +)?(?:(gfx[0-9a-f]{3,6}) +)?.*? "
    r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?: +(\d+))? *$",
    re.ASCII,
)
_LISTED = re.compile(r"^GPU\[(\d{1,4})\]\s*: ([^:]{1,80}):\s*(\S.{0,300}|)$", re.ASCII)
_LEVEL = re.compile(r"\d+: (\(.+\))")
_DEVICE = re.compile(r"^(\d{1,4}) +(\S.*)$", re.ASCII)
_HEAT = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?)(?:\N{DEGREE SIGN}C|c)(?!\w)", re.ASCII)
_WATTS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)W(?!\w)", re.ASCII)
_CLOCK = re.compile(r"(?<![\w.])(?:(\d+(?:\.\d+)?)M[Hh]z|None)(?!\w)", re.ASCII)
_PARTITIONS = re.compile(r"(?<!\S)(NPS\d), (SPX|DPX|TPX|QPX|CPX)(?:, (\d+))?(?!\S)")


def parse_hardware(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each row of `rocm-smi --showhw`: address, architecture and partition."""
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


def parse_list(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading per GPU from the output of `rocm-smi -i`, `--showtemp` etc., which has one value per line."""
    cards: dict[int, dict[str, object]] = {}
    for line in text.splitlines():
        if row := _LISTED.match(line):
            name, value = row[2].strip(), row[3].strip()
            level = _LEVEL.fullmatch(value)
            # Clocks have other names here than in the tool's JSON.
            key = f"{name.removesuffix(' level')} speed:" if level else name
            cards.setdefault(int(row[1]), {})[key] = level[1] if level else value
    return tuple(reading_of(index, card, at) for index, card in cards.items())


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
            readings.append(_parse_concise_row(int(row[1]), line, " ".join(head), at))
    return tuple(readings)


def _parse_concise_row(index: int, row: str, head: str, at: Moment) -> GpuReading:
    heat = _HEAT.search(row)
    clocks = list(_CLOCK.finditer(row))
    # The power draw is printed before the clocks and the cap after them; either may be missing from the row.
    border = clocks[0].start() if clocks else len(row)
    power, cap = _WATTS.search(row, 0, border), _WATTS.search(row, border)
    celsius_read = celsius(number(heat[1])) if heat else None
    is_junction, shares = "unction" in head, _read_shares(row, head)
    partitions = _PARTITIONS.search(row)
    return GpuReading(
        at=at,
        gpu=f"gpu{index}",
        source=RocmSmi.name,
        index=index,
        junction_c=celsius_read if is_junction else None,
        edge_c=None if is_junction else celsius_read,
        power_w=watts(number(power[1])) if power else None,
        power_cap_w=watts(number(cap[1])) if cap and "PwrCap" in head else None,
        sclk_hz=hertz(clocks[0][1]) if clocks else None,
        mclk_hz=hertz(clocks[1][1]) if len(clocks) > 1 else None,
        vram_used_percent=percent(shares.get("VRAM%")),
        gpu_busy_percent=percent(shares.get("GPU%")),
        memory_partition=partitions[1] if partitions else None,
        compute_partition=partitions[2] if partitions else None,
        partition=count(number(partitions[3])) if partitions and partitions[3] else None,
    )


def _read_shares(row: str, head: str) -> dict[str, float | None]:
    """Return the percentages of the last columns by name; in every version they are at the end of the row."""
    names = sorted((name for name in ("VRAM%", "GPU%") if name in head), key=head.index)
    cells = row.split()[-len(names) :] if names else []
    values = (number(cell[:-1]) if cell.endswith("%") else None for cell in cells)
    return dict(zip(names, values, strict=False))
