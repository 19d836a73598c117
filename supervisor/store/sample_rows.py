"""Readings as rows of the tables of samples; pure functions, no query."""

from __future__ import annotations

from dataclasses import asdict

from supervisor.core.readings import GpuReading, HostReading, ProcessReading
from supervisor.store.steps import Row

_GPU_SAMPLE = (
    "gpu",
    "source",
    "gpu_busy_percent",
    "memory_busy_percent",
    "vram_used_bytes",
    "gtt_used_bytes",
    "edge_c",
    "junction_c",
    "memory_c",
    "power_w",
    "power_cap_w",
    "fan_rpm",
    "sclk_hz",
    "mclk_hz",
    "runtime_status",
)
_GPU = ("gpu", "name", "unique_id", "gfx_version", "vram_total_bytes", "gtt_total_bytes")


def gpu_row(reading: GpuReading) -> Row:
    """Return what does not change of a card."""
    return {**{name: getattr(reading, name) for name in _GPU}, "seen_unix_s": reading.at.unix_s}


def gpu_sample_row(reading: GpuReading) -> Row:
    """Return the row of one reading of a card."""
    return {"at_unix_s": reading.at.unix_s, **{name: getattr(reading, name) for name in _GPU_SAMPLE}}


def host_sample_row(reading: HostReading) -> Row:
    """Return the row of one reading of the machine."""
    return {
        "at_unix_s": reading.at.unix_s,
        "memory_total_bytes": reading.memory_total_bytes,
        "memory_available_bytes": reading.memory_available_bytes,
        "swap_used_bytes": reading.swap_used_bytes,
        "load_1m": reading.load_1m,
        "cpu_percent": reading.cpu_percent,
        "disks": [asdict(disk) for disk in reading.disks],
    }


def process_sample_row(job: str, attempt: int, reading: ProcessReading) -> Row:
    """Return the row of one reading of an attempt's process tree."""
    return {
        "at_unix_s": reading.at.unix_s,
        "job": job,
        "attempt": attempt,
        "processes": reading.processes,
        "rss_bytes": reading.rss_bytes,
        "cpu_percent": reading.cpu_percent,
        "uninterruptible": len(reading.uninterruptible_pids),
    }
