"""Parses the text output of `nvidia-smi`: its table, `dmon`, `pmon` and `-L`; for saved text only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess, GpuReading
from supervisor.sources.gpu.nvidia_smi import NvidiaSmi, address, uuid
from supervisor.sources.gpu.sensor_values import bytes_of, celsius, count, hertz, number, percent, watts

_NAME = re.compile(
    r"^\|\s+(\d{1,3})\s+(\S.*?)\s+\|\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s", re.ASCII
)
_MODE = re.compile(r"\s{2,}\S+$|\s+(?:On|Off|WDDM|TCC|MCDM|N/A)$")
_POWER = re.compile(r"(\d+(?:\.\d+)?|N/A)\s*W?\s*/\s*(\d+(?:\.\d+)?|N/A)", re.ASCII)
_MEMORY = re.compile(r"(\d+)\s*MiB\s*/\s*(\d+)\s*MiB", re.ASCII)
_HEAT = re.compile(r"(?<!\S)(-?\d{1,3})C(?!\S)", re.ASCII)
_LEVEL = re.compile(r"(?<!\S)(P\d{1,2})(?!\S)", re.ASCII)
_SHARE = re.compile(r"(?<!\S)(\d{1,3})%", re.ASCII)
_PROCESS = re.compile(
    r"^\|\s+(\d{1,3})\s+(?:\S+\s+\S+\s+)?(\d{1,10})\s+(C|G|C\+G|M\+C)\s+(\S.*?)\s+(\d+MiB|N/A)\s*\|$", re.ASCII
)
_LISTED = re.compile(r"^GPU (\d{1,3}): (\S.*?) \(UUID: (\S+)\)$", re.ASCII)


def parse_table(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading, with processes, for each GPU of the table that `nvidia-smi` prints without arguments."""
    readings: dict[int, GpuReading] = {}
    current: int | None = None
    for line in text.splitlines():
        if named := _NAME.match(line):
            current = int(named[1])
            readings[current] = GpuReading(
                at=at,
                gpu=address(named[3]) or f"gpu{current}",
                source=NvidiaSmi.name,
                index=current,
                name=_MODE.sub("", named[2]).strip(),
                ecc_uncorrectable=count(number(line.rstrip(" |").split()[-1])),
            )
        elif (ran := _PROCESS.match(line)) and int(ran[1]) in readings:
            card = readings[int(ran[1])]
            process = GpuProcess(pid=int(ran[2]), name=ran[4][:200], vram_bytes=bytes_of(ran[5][:-3], ran[5][-3:]))
            readings[card.index or 0] = replace(card, processes=(*(card.processes or ()), process))
        elif "No running processes found" in line:
            readings = {index: replace(card, processes=()) for index, card in readings.items()}
        elif current is not None and line.count("|") == 4:
            readings[current] = _add_sensors(readings[current], line.split("|")[1:4])
            current = None
    return tuple(readings.values())


def _add_sensors(card: GpuReading, cells: Sequence[str]) -> GpuReading:
    board, memory, use = cells
    power, sizes, share = _POWER.search(board), _MEMORY.search(memory), _SHARE.search(use)
    heat, level = _HEAT.search(board), _LEVEL.search(board)
    return replace(
        card,
        edge_c=celsius(number(heat[1])) if heat else None,
        performance_level=level[1] if level else None,
        power_w=watts(number(power[1])) if power else None,
        power_cap_w=watts(number(power[2])) if power else None,
        vram_used_bytes=bytes_of(sizes[1], "MiB") if sizes else None,
        vram_total_bytes=bytes_of(sizes[2], "MiB") if sizes else None,
        gpu_busy_percent=percent(number(share[1])) if share else None,
    )


def parse_columns(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return the last row of each GPU in `nvidia-smi dmon`, or its processes in the last round of `pmon`."""
    names: list[str] = []
    readings: dict[int, GpuReading] = {}
    for line in text.splitlines():
        words = line.split()
        if line.startswith("# gpu"):
            names = words[1:]
        elif names and words and words[0].isdecimal() and len(words) >= len(names):
            row = dict(zip(names, words, strict=False))
            index = count(number(row.get("gpu")))
            if index is None:
                continue
            known = readings.get(index) or GpuReading(at=at, gpu=f"gpu{index}", source=NvidiaSmi.name, index=index)
            readings[index] = _add_process(known, row, words, names) if "pid" in row else _add_columns(known, row)
    return tuple(readings.values())


def _add_columns(known: GpuReading, row: dict[str, str]) -> GpuReading:
    return replace(
        known,
        power_w=watts(number(row.get("pwr"))),
        edge_c=celsius(number(row.get("gtemp"))),
        memory_c=celsius(number(row.get("mtemp"))),
        gpu_busy_percent=percent(number(row.get("sm"))),
        memory_busy_percent=percent(number(row.get("mem"))),
        mclk_hz=hertz(row.get("mclk")),
        sclk_hz=hertz(row.get("pclk")),
    )


def _add_process(known: GpuReading, row: dict[str, str], words: Sequence[str], names: Sequence[str]) -> GpuReading:
    """Add a process; a later line of the same process replaces the earlier one."""
    pid = count(number(row["pid"]))
    if not pid:
        return known
    name = " ".join(words[len(names) - 1 :])
    process = GpuProcess(pid=pid, name=name[:200], busy_percent=percent(number(row.get("sm"))))
    others = tuple(gpu_process for gpu_process in known.processes or () if gpu_process.pid != pid)
    return replace(known, processes=(*others, process))


def parse_list(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return index, name and unique id of each GPU in the output of `nvidia-smi -L`."""
    found = (_LISTED.match(line.strip()) for line in text.splitlines())
    return tuple(
        GpuReading(
            at=at,
            gpu=f"gpu{match[1]}",
            source=NvidiaSmi.name,
            index=int(match[1]),
            name=match[2],
            unique_id=uuid(match[3]),
        )
        for match in found
        if match is not None
    )
