"""The number of compute units of a device, and the name that its plans are stored under."""

from __future__ import annotations

import platform
from functools import lru_cache

import torch


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors (compute units) of a GPU; 1 for a CPU, where operators cost little."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def described(device: torch.device) -> str:
    """Return what makes one device's timings another's: its name and architecture, for a CPU its threads."""
    if device.type != "cuda":
        return f"{_read_cpu_name()}, {torch.get_num_threads()} threads"
    properties = torch.cuda.get_device_properties(device)
    arch = getattr(properties, "gcnArchName", "") or f"{properties.major}.{properties.minor}"
    return f"{properties.name}, {arch}, {properties.multi_processor_count} processors"


def _read_cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
