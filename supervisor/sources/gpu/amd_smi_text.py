"""Parses the text output of `amd-smi`: the indented lists of `metric` and `process`, and the tables of `monitor`.

Used only for saved text, since the source itself reads JSON. Columns: amdsmi_commands.py of ROCm/amdsmi, 6.1 to 7.x.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess, GpuReading
from supervisor.sources.gpu.amd_smi import AmdSmi, parse_saved
from supervisor.sources.gpu.sensor_values import bytes_of, celsius, count, hertz, number, percent, watts

_BLOCK = re.compile(r"^GPU:\s*(\d{1,4})\s*$", re.ASCII)
_ENTRY = re.compile(r"^( *)([A-Za-z0-9_/ ]+?):(?: (.*))?$")
_LEAF = re.compile(r"^(-?\d+(?:\.\d+)?) ([^\s\d\[\]]\S*)$", re.ASCII)
_HEAD = re.compile(r"^(?:TIMESTAMP +)?GPU +[A-Z0-9_%][A-Z0-9_% ]*$", re.ASCII)
_CELL = re.compile(
    r"(?:N/A|-?\d+(?:\.\d+)?)(?:/ *\d+(?:\.\d+)?)?(?: (?:W|\N{DEGREE SIGN}C|%|MHz|GHz|MB|GB|Mb/s|MB/s))?(?= |$)",
    re.ASCII,
)
_PROCESS = re.compile(
    r"^ *(\d{1,4}) +(\S.*?) +(\d{1,10}) +(\d\S* \w+|N/A) +(\d\S* \w+|N/A) +(\d\S* \w+|N/A)(?= |$)", re.ASCII
)
Row = Mapping[str, str]


def parse_lists(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each `GPU: N` block of `amd-smi metric` or `amd-smi process`."""
    cards: list[dict[str, object]] = []
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if found := _BLOCK.match(line):
            cards.append({"gpu": int(found[1])})
            blocks.append([])
        elif blocks:
            blocks[-1].append(line)
    for card, block in zip(cards, blocks, strict=True):
        card.update(_build_tree(block))
        if info := card.pop("process_info", None):
            card["process_list"] = [{"process_info": item} for item in (info if isinstance(info, list) else [info])]
    return parse_saved(json.dumps(cards), at)


def _build_tree(lines: Sequence[str]) -> dict[str, object]:
    """Convert the indented lines into the objects that the JSON has; a repeated branch becomes a list."""
    root: dict[str, object] = {}
    stack: list[tuple[int, dict[str, object]]] = [(-1, root)]
    for line in lines:
        found = _ENTRY.match(line)
        if found is None:
            continue
        depth, key, value = len(found[1]), found[2].lower(), (found[3] or "").strip()
        while len(stack) > 1 and stack[-1][0] >= depth:
            stack.pop()
        parent = stack[-1][1]
        if value:
            parent[key] = _parse_leaf(value)
            continue
        branch: dict[str, object] = {}
        stack.append((depth, branch))
        before = parent.get(key)
        parent[key] = [*(before if isinstance(before, list) else [before]), branch] if before is not None else branch
    return root


def _parse_leaf(text: str) -> object:
    found = _LEAF.match(text)
    if found:
        return {"value": found[1], "unit": found[2]}
    return text


def parse_monitor(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each row of `amd-smi monitor`; a later row of the same GPU replaces it (`-w`)."""
    head: list[str] = []
    readings: dict[int, GpuReading] = {}
    for line in text.splitlines():
        if _HEAD.match(line.rstrip()):
            head = line.split()
        elif (found := _PROCESS.match(line)) and "PID" in head:
            _add_process(readings, found, at)
        elif head and "PID" not in head and line.strip():
            cells = _CELL.findall(line.strip())
            if len(cells) == len(head) and (reading := _parse_row(dict(zip(head, cells, strict=True)), at)):
                readings[reading.index or 0] = reading
    return tuple(readings.values())


def _parse_row(row: Row, at: Moment) -> GpuReading | None:
    index = count(number(row["GPU"]))
    if index is None:
        return None
    used, total = _read_memory(row)
    return GpuReading(
        at=at,
        gpu=f"gpu{index}",
        source=AmdSmi.name,
        index=index,
        partition=count(_read_value(row, "XCP")),
        power_w=watts(_read_value(row, "POWER")),
        junction_c=celsius(_read_value(row, "GPU_TEMP", "GPU_T")),
        memory_c=celsius(_read_value(row, "MEM_TEMP", "MEM_T")),
        gpu_busy_percent=percent(_read_value(row, "GFX_UTIL", "GFX%")),
        memory_busy_percent=percent(_read_value(row, "MEM_UTIL", "MEM%")),
        sclk_hz=_read_clock_hz(row, "GFX_CLOCK", "GFX_CLK"),
        mclk_hz=_read_clock_hz(row, "MEM_CLOCK", "MEM_CLK"),
        vram_used_bytes=used,
        vram_total_bytes=total,
        pcie_replays=count(_read_value(row, "PCIE_REPLAY")),
        ecc_correctable=count(_read_value(row, "SINGLE_ECC")),
        ecc_uncorrectable=count(_read_value(row, "DOUBLE_ECC")),
        throttled_by=_list_violations(row),
    )


def _read_memory(row: Row) -> tuple[int | None, int | None]:
    """Return used and total bytes from `VRAM_USED` and `VRAM_TOTAL`, or from ROCm 7's column `2.9/ 15.9 GB`."""
    both = row.get("VRAM_USAGE")
    if both is None or "/" not in both or both.startswith("N/A"):
        return _parse_bytes(row.get("VRAM_USED")), _parse_bytes(row.get("VRAM_TOTAL"))
    numbers, _, unit = both.rpartition(" ")
    used, _, total = numbers.partition("/")
    return bytes_of(used, unit), bytes_of(total.strip(), unit)


def _list_violations(row: Row) -> tuple[str, ...] | None:
    """Return the limits that were active during the last interval; None if the table has no such column."""
    columns = {"PVIOL": "ppt", "TVIOL": "socket_thermal", "PHOT_TVIOL": "prochot", "VR_TVIOL": "vr_thermal",
               "HBM_TVIOL": "hbm_thermal"}  # fmt: skip
    known = {name: value for key, name in columns.items() if (value := _read_value(row, key)) is not None}
    return tuple(name for name, value in known.items() if value > 0) if known else None


def _add_process(readings: dict[int, GpuReading], found: re.Match[str], at: Moment) -> None:
    index = int(found[1])
    before = readings.get(index) or GpuReading(at=at, gpu=f"gpu{index}", source=AmdSmi.name, index=index)
    process = GpuProcess(
        pid=int(found[3]), name=found[2][:200], gtt_bytes=_parse_bytes(found[4]), vram_bytes=_parse_bytes(found[6])
    )
    readings[index] = replace(before, processes=(*(before.processes or ()), process))


def _read_value(row: Row, *names: str) -> float | None:
    return next((number(row[name].split(" ")[0]) for name in names if name in row), None)


def _read_clock_hz(row: Row, *names: str) -> int | None:
    text = next((row[name] for name in names if name in row), "")
    value, _, unit = text.partition(" ")
    return hertz(value) if unit == "MHz" else None


def _parse_bytes(text: str | None) -> int | None:
    value, _, unit = (text or "").partition(" ")
    return bytes_of(value, unit)
