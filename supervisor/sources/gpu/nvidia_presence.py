"""Detects the NVIDIA driver and its suspended GPUs without opening a device, so that no GPU wakes up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.sensor_values import pci_address
from supervisor.sources.gpu.source import SourceSilentError
from supervisor.sources.kernel_files import read_text

_VENDOR = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""PCI classes of a VGA and of a 3D controller."""


def require_driver(sys_root: Path, control: Path) -> None:
    """Raise SourceSilentError if no NVIDIA driver is loaded, so that no process is started for a query."""
    if not control.exists() and not (sys_root / "module/nvidia").exists():
        raise SourceSilentError(f"no NVIDIA driver ({control} does not exist)")


def asleep(sys_root: Path, now: Moment, source: str) -> tuple[GpuReading, ...]:
    """Return a reading for each GPU if all are suspended, else (), because NVML wakes every GPU that it queries."""
    states = dict(_read_states(sys_root))
    if not states or any(state not in ("suspended", "suspending") for state in states.values()):
        return ()
    return tuple(GpuReading(at=now, gpu=gpu, source=source, runtime_status=state) for gpu, state in states.items())


def _read_states(sys_root: Path) -> Iterator[tuple[str, str]]:
    try:
        devices = sorted((sys_root / "bus/pci/devices").iterdir())
    except OSError:
        return
    for device in devices:
        gpu = pci_address(device.name)
        if gpu and read_text(device / "vendor") == _VENDOR and read_text(device / "class").startswith(_DISPLAY):
            yield gpu, read_text(device / "power/runtime_status")
