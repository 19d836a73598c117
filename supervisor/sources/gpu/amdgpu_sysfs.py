"""Reads AMD GPUs from sysfs, the cheapest source; does not wake a suspended GPU.

Meanings and units: the kernel's Documentation/gpu/amdgpu/thermal.rst and driver-misc.rst.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.amdgpu_cards import Card, discover
from supervisor.sources.gpu.gpu_metrics import Metrics, parse, throttled_by
from supervisor.sources.gpu.kfd_processes import read_kfd_processes
from supervisor.sources.gpu.sensor_values import celsius, count, current_level_hz, number, percent, transfers, watts
from supervisor.sources.gpu.source import SourceSilentError
from supervisor.sources.gpu.sysfs_files import SysfsFiles
from supervisor.sources.kernel_files import read_text

REDISCOVER_S = 60.0
"""GPUs and their hwmon folders get new numbers when the driver is reloaded."""
SLOW_S = 10.0
"""Link, error counters and partitions rarely change, so they are read at this interval."""
_ASLEEP = frozenset({"suspended", "suspending"})


class AmdgpuSysfs:
    """All GPUs of the amdgpu driver, under `sys_root` (`/sys`)."""

    name: ClassVar[str] = "sysfs"
    vendor: ClassVar[str] = "amd"
    interval_s: ClassVar[float] = 0.0
    deadline_s: ClassVar[float] = 5.0
    wait_s: ClassVar[float] = 0.5

    def __init__(self, sys_root: Path = Path("/sys")) -> None:
        self._root = sys_root
        self._cards: tuple[Card, ...] = ()
        self._discovered: Moment | None = None
        self._files = SysfsFiles()
        self._slow: dict[str, tuple[Moment, GpuReading]] = {}

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return one reading per GPU. Raises SourceSilentError if the driver has none.

        A value is None if its file fails with EPERM or EBUSY (the GPU is being reset).
        """
        if self._discovered is None or now.seconds_since(self._discovered) >= REDISCOVER_S:
            self._files.forget()
            self._slow.clear()
            self._cards, self._discovered = tuple(discover(self._root)), now
        if not self._cards:
            raise SourceSilentError(f"no GPU of the amdgpu driver under {self._root}/class/drm")
        readings = tuple(reading for card in self._cards if (reading := self._read_gpu(card, now)) is not None)
        if len(readings) < len(self._cards) or self._files.device_gone:
            self._discovered = None
        return read_kfd_processes(self._root, {card.gpu: card.kfd_ids for card in self._cards}, readings)

    def close(self) -> None:
        """Close the files."""
        self._files.forget()

    def _read_gpu(self, card: Card, now: Moment) -> GpuReading | None:
        status = read_text(f"{card.device}/power/runtime_status") or None
        if status is None and not os.path.exists(card.device):  # noqa: PTH110 (a Path would cost more than the question)
            return None
        if status in _ASLEEP:
            return _build_reading(card, now, status)
        metrics = parse(self._files.raw(f"{card.device}/gpu_metrics") or b"")
        return self._read_sensors(card, self._read_slow_values(card, now, metrics), metrics, status)

    def _read_sensors(self, card: Card, slow: GpuReading, metrics: Metrics | None, status: str | None) -> GpuReading:
        device, temperatures, clocks = card.device, card.temperatures, card.clocks
        power_w = next((value for path in card.powers if (value := self._read_watts(path)) is not None), None)
        return replace(
            slow,
            gpu_busy_percent=percent(self._read_number(f"{device}/gpu_busy_percent")),
            memory_busy_percent=percent(self._read_number(f"{device}/mem_busy_percent")),
            vram_used_bytes=count(self._read_number(f"{device}/mem_info_vram_used")),
            gtt_used_bytes=count(self._read_number(f"{device}/mem_info_gtt_used")),
            edge_c=self._read_celsius(temperatures.get("edge")),
            junction_c=self._read_celsius(temperatures.get("junction")),
            memory_c=self._read_celsius(temperatures.get("mem")),
            power_w=power_w if power_w is not None or metrics is None else metrics.power_w,
            fan_rpm=count(self._read_number(card.fan)),
            sclk_hz=self._read_clock_hz(clocks.get("sclk"), f"{device}/pp_dpm_sclk"),
            mclk_hz=self._read_clock_hz(clocks.get("mclk"), f"{device}/pp_dpm_mclk"),
            throttled_by=None if metrics is None else throttled_by(metrics),
            runtime_status=status,
        )

    def _read_slow_values(self, card: Card, now: Moment, metrics: Metrics | None) -> GpuReading:
        """Return the values that rarely change, read again every `SLOW_S`."""
        kept = self._slow.get(card.gpu)
        if kept is not None and now.seconds_since(kept[0]) < SLOW_S:
            return replace(kept[1], at=now)
        device = card.device
        replays = count(self._read_number(f"{device}/pcie_replay_count"))
        correctable, uncorrectable = self._count_errors(card)
        lanes = count(self._read_number(f"{device}/current_link_width"))
        gts = transfers(self._files.text(f"{device}/current_link_speed"))
        reading = replace(
            _build_reading(card, now, None),
            vram_total_bytes=count(self._read_number(f"{device}/mem_info_vram_total")),
            gtt_total_bytes=count(self._read_number(f"{device}/mem_info_gtt_total")),
            power_cap_w=self._read_watts(card.power_cap),
            unified_memory=card.has_processor_rail or bool(metrics and metrics.is_apu),
            compute_partition=self._files.text(f"{device}/current_compute_partition"),
            memory_partition=self._files.text(f"{device}/current_memory_partition"),
            performance_level=self._files.text(f"{device}/power_dpm_force_performance_level"),
            pcie_lanes=lanes or None,
            pcie_gts=gts,
            pcie_replays=replays if replays is not None or metrics is None else metrics.pcie_replays,
            ecc_correctable=correctable,
            ecc_uncorrectable=uncorrectable,
        )
        self._slow[card.gpu] = now, reading
        return reading

    def _count_errors(self, card: Card) -> tuple[int | None, int | None]:
        """Return the sums of correctable and uncorrectable errors of all blocks; None if no block counts them."""
        found: dict[str, list[int]] = {"ce": [], "ue": []}
        for path in card.error_counts:
            for line in (self._files.text(path) or "").splitlines():
                name, _, value = line.partition(":")
                if name in found and (errors := count(number(value))) is not None:
                    found[name].append(errors)
        corrected, uncorrected = (sum(found[name]) if found[name] else None for name in ("ce", "ue"))
        return corrected, uncorrected

    def _read_number(self, path: str | None) -> float | None:
        return number(self._files.text(path)) if path else None

    def _read_celsius(self, path: str | None) -> float | None:
        value = self._read_number(path)
        return None if value is None else celsius(value / 1000)

    def _read_watts(self, path: str) -> float | None:
        value = self._read_number(path)
        return None if value is None else watts(value / 1e6)

    def _read_clock_hz(self, path: str | None, levels: str) -> int | None:
        """Return the sensor's clock in Hz; without a sensor, that of the present performance level."""
        return count(self._read_number(path)) if path else current_level_hz(self._files.text(levels))


def _build_reading(card: Card, now: Moment, status: str | None) -> GpuReading:
    return GpuReading(
        at=now,
        gpu=card.gpu,
        source=AmdgpuSysfs.name,
        name=card.name,
        unique_id=card.unique_id,
        gfx_version=card.gfx_version,
        runtime_status=status,
    )
