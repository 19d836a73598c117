"""Reads GPUs through `amd-smi`, a fallback that costs two processes per reading, and parses its saved JSON.

ROCm 6 prints a list of GPUs, ROCm 7 an object with that list as `gpu_data`. A leaf is `{"value": 5, "unit": "W"}`, a
number, or the text `N/A`; with partitions a complete branch may be `N/A`. Names of the keys: amdsmi_commands.py of
ROCm/amdsmi, 6.0 to 7.x.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess, GpuReading
from supervisor.sources.gpu.sensor_values import (
    bytes_of,
    celsius,
    count,
    number,
    pci_address,
    percent,
    transfers,
    watts,
)
from supervisor.sources.gpu.tool import AmdTool

Branch = Mapping[str, object]
_FACTORS = {
    "": 1.0, "w": 1.0, "mw": 1e-3, "c": 1.0, "\N{DEGREE SIGN}c": 1.0, "%": 1.0, "mhz": 1e6, "ghz": 1e9, "gt/s": 1.0,
    "ns": 1e-9, "rpm": 1.0,
}  # fmt: skip


class AmdSmi(AmdTool):
    """The tool `amd-smi`: it is run once for the addresses, and at each reading for the measurements."""

    name: ClassVar[str] = "amd-smi"
    runs: ClassVar[int] = 2
    _addresses: Mapping[int, str] = {}

    def _query(self, now: Moment) -> tuple[GpuReading, ...]:
        if not self._addresses:
            self._addresses = addresses(self._tool.run("list", "--json"))
        found = parse(self._tool.run("metric", "--json"), now, self._addresses)
        if not found:
            self._addresses = {}
        return found


def addresses(stdout: str) -> dict[int, str]:
    """Return the PCI address of each GPU by the tool's index, from `amd-smi list --json`."""
    found = ((_gpu_index(card), pci_address(card.get("bdf"))) for card in cards_of(stdout))
    return {index: address for index, address in found if index is not None and address is not None}


def parse(stdout: str, at: Moment, known: Mapping[int, str]) -> tuple[GpuReading, ...]:
    """Return one reading for each GPU whose address is known; further partitions of a GPU are omitted."""
    readings: dict[str, GpuReading] = {}
    for reading in parse_saved(stdout, at, known):
        if pci_address(reading.gpu) is not None:
            readings.setdefault(reading.gpu, reading)
    return tuple(readings.values())


def parse_saved(stdout: str, at: Moment, known: Mapping[int, str] | None = None) -> tuple[GpuReading, ...]:
    """Return one reading for each GPU of any saved `amd-smi ... --json`, named `gpu0` if it has no address."""
    return tuple(
        _build_reading(card, index, (known or {}).get(index), at)
        for card in cards_of(stdout)
        if (index := _gpu_index(card)) is not None
    )


def cards_of(stdout: str) -> tuple[Branch, ...]:
    """Return the GPUs in the JSON of either form, which other lines may precede; () if there is none."""
    for start in _find_json_starts(stdout):
        try:
            document, _ = json.JSONDecoder().raw_decode(stdout, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            document = document.get("gpu_data", [document])
        if isinstance(document, list) and any(isinstance(card, dict) and "gpu" in card for card in document):
            return tuple(card for card in document if isinstance(card, dict))
    return ()


def _find_json_starts(stdout: str) -> Iterator[int]:
    position = 0
    for _ in range(8):
        found = [where for mark in "[{" if (where := stdout.find(mark, position)) >= 0]
        if not found:
            return
        yield min(found)
        position = min(found) + 1


def _gpu_index(card: Branch) -> int | None:
    value = card.get("gpu")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 4096 else None


def _build_reading(card: Branch, index: int, known: str | None, at: Moment) -> GpuReading:
    usage, power, heat = (_get_branch(card, name) for name in ("usage", "power", "temperature"))
    memory, link, errors = (_get_branch(card, name) for name in ("mem_usage", "pcie", "ecc"))
    address = pci_address(_get_branch(card, "bus").get("bdf")) or pci_address(card.get("bdf")) or known
    return GpuReading(
        at=at,
        gpu=address or f"gpu{index}",
        source=AmdSmi.name,
        index=index,
        name=_read_text(_get_branch(card, "asic").get("market_name")),
        gpu_busy_percent=percent(_read_value(usage, "gfx_activity")),
        memory_busy_percent=percent(_read_value(usage, "umc_activity")),
        vram_used_bytes=_read_bytes(memory, "used_vram"),
        vram_total_bytes=_read_bytes(memory, "total_vram"),
        gtt_used_bytes=_read_bytes(memory, "used_gtt"),
        gtt_total_bytes=_read_bytes(memory, "total_gtt"),
        edge_c=celsius(_read_value(heat, "edge")),
        junction_c=celsius(_read_value(heat, "hotspot", "junction")),
        memory_c=celsius(_read_value(heat, "mem")),
        power_w=watts(_read_value(power, "socket_power", "current_socket_power", "average_socket_power")),
        fan_rpm=count(_read_value(_get_branch(card, "fan"), "rpm")),
        sclk_hz=_read_clock_hz(card, "gfx_0", "gfx"),
        mclk_hz=_read_clock_hz(card, "mem_0", "mem"),
        performance_level=_read_text(card.get("perf_level")),
        throttled_by=throttled(card),
        pcie_lanes=count(_read_value(link, "width", "current_lanes")),
        pcie_gts=_read_link_speed(link),
        pcie_replays=count(_read_value(link, "replay_count")),
        ecc_correctable=count(_read_value(errors, "total_correctable_count", "total_correctable")),
        ecc_uncorrectable=count(_read_value(errors, "total_uncorrectable_count", "total_uncorrectable")),
        processes=_list_processes(card),
    )


def throttled(card: Branch) -> tuple[str, ...] | None:
    """Return the violations reported as active.

    `throttle_status` is used only if it is UNTHROTTLED: RDNA3 and RDNA4 print THROTTLED on a cold GPU
    (ROCm/rocm-systems#11781).
    """
    states = {
        key.removesuffix("_violation_status"): value
        for key, value in _get_branch(card, "throttle").items()
        if key.endswith("_violation_status") and isinstance(value, str) and value != "N/A"
    }
    if states:
        return tuple(name for name, value in states.items() if value == "ACTIVE")
    return () if _get_branch(card, "power").get("throttle_status") == "UNTHROTTLED" else None


def _list_processes(card: Branch) -> tuple[GpuProcess, ...] | None:
    listed = card.get("process_list")
    if not isinstance(listed, list):
        return None
    infos = [_get_branch(entry, "process_info") for entry in listed if isinstance(entry, dict)]
    return tuple(process for info in infos if (process := _parse_process(info)) is not None)


def _parse_process(info: Branch) -> GpuProcess | None:
    pid = count(number(info.get("pid")))
    if not pid:
        return None
    memory, usage = _get_branch(info, "memory_usage"), _get_branch(info, "usage")
    vram = _read_bytes(memory, "vram_mem")
    times = [time for key in usage if (time := _read_value(usage, key)) is not None]
    return GpuProcess(
        pid=pid,
        name=_read_text(info.get("name")),
        vram_bytes=vram if vram is not None else _read_bytes(info, "mem_usage", "mem"),
        gtt_bytes=_read_bytes(memory, "gtt_mem"),
        engine_s=sum(times) if times else None,
    )


def _get_branch(card: Branch, name: str) -> Branch:
    branch = card.get(name)
    return branch if isinstance(branch, dict) else {}


def _read_value(branch: Branch, *names: str) -> float | None:
    """Return the first leaf that has a number, in the reading's unit (W, C, %, Hz, s)."""
    for name in names:
        leaf = _get_branch(branch, name) or {"value": branch.get(name)}
        value, factor = number(leaf.get("value")), _FACTORS.get(str(leaf.get("unit") or "").strip().lower())
        if value is not None and factor is not None:
            return number(value * factor)
    return None


def _read_bytes(branch: Branch, *names: str) -> int | None:
    for name in names:
        leaf = branch.get(name)
        if isinstance(leaf, dict):
            size = bytes_of(leaf.get("value"), str(leaf.get("unit") or ""))
            if size is not None:
                return size
    return None


def _read_clock_hz(card: Branch, *names: str) -> int | None:
    for name in names:
        clock = _get_branch(_get_branch(card, "clock"), name)
        value = _read_value(clock, "clk", "cur_clk")
        if value is not None:
            return count(value)
    return None


def _read_link_speed(link: Branch) -> float | None:
    speed = link.get("speed")
    return transfers(speed) if isinstance(speed, str) else _read_value(link, "speed", "current_speed")


def _read_text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) and value and value != "N/A" else None
