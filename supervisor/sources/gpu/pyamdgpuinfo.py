"""Reads GPUs through the optional package pyamdgpuinfo, in a child process that is killed at a deadline."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.child import ChildSource, list_gpus
from supervisor.sources.gpu.sensor_values import celsius, count, number, pci_address, percent, watts

CHILD = Path(__file__).with_name("pyamdgpuinfo_child.py")


class Pyamdgpuinfo(ChildSource):
    """The package pyamdgpuinfo, queried through a child process that is started at the first reading and kept."""

    name: ClassVar[str] = "pyamdgpuinfo"
    vendor: ClassVar[str] = "amd"
    wait_s: ClassVar[float] = 0.0

    def __init__(
        self, interpreter: str = sys.executable, child: Path = CHILD, interval_s: float = 2.0, deadline_s: float = 5.0
    ) -> None:
        super().__init__(child, interpreter, interval_s, deadline_s)

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Query the child. Raises SourceSilentError if the package is missing, lacks permission, or is too slow."""
        return parse(self._child.ask(), now)


def parse(answer: Mapping[str, object], at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each GPU in the child's answer that has a PCI address."""
    return tuple(_build_reading(values, gpu, at) for values, gpu in list_gpus(answer, "pci_slot", pci_address))


def _build_reading(card: Mapping[str, object], gpu: str, at: Moment) -> GpuReading:
    load = number(card.get("load"))
    name = card.get("name")
    return GpuReading(
        at=at,
        gpu=gpu,
        source=Pyamdgpuinfo.name,
        name=name[:200] if isinstance(name, str) and name else None,
        gpu_busy_percent=None if load is None else percent(load * 100),
        vram_used_bytes=count(number(card.get("vram_used"))),
        vram_total_bytes=count(number(card.get("vram_total"))),
        gtt_used_bytes=count(number(card.get("gtt_used"))),
        gtt_total_bytes=count(number(card.get("gtt_total"))),
        edge_c=celsius(number(card.get("temperature"))),
        power_w=watts(number(card.get("power"))),
        sclk_hz=count(number(card.get("sclk"))),
        mclk_hz=count(number(card.get("mclk"))),
    )
