"""Reads NVIDIA GPUs through NVML (package nvidia-ml-py), in a child process that is killed at a deadline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess, GpuReading
from supervisor.sources.gpu.child import ChildSource, list_gpus
from supervisor.sources.gpu.nvidia_presence import asleep, require_driver
from supervisor.sources.gpu.nvidia_smi import address, limits, pcie_gts, uuid
from supervisor.sources.gpu.sensor_values import celsius, count, hertz, number, percent, watts
from supervisor.sources.gpu.source import SourceSilentError

CHILD = Path(__file__).with_name("nvml_child.py")


class Nvml(ChildSource):
    """The library NVML, queried through a child process that is started at the first reading and kept."""

    name: ClassVar[str] = "nvml"
    vendor: ClassVar[str] = "nvidia"
    wait_s: ClassVar[float] = 0.5

    def __init__(
        self,
        interpreter: str = sys.executable,
        child: Path = CHILD,
        deadline_s: float = 5.0,
        sys_root: Path = Path("/sys"),
        control: Path = Path("/dev/nvidiactl"),
    ) -> None:
        super().__init__(child, interpreter, interval_s=0.0, deadline_s=deadline_s)
        self._sys_root, self._control = sys_root, control

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Query the child, unless all GPUs are suspended. Raises SourceSilentError without driver or package."""
        require_driver(self._sys_root, self._control)
        sleeping = asleep(self._sys_root, now, self.name)
        if sleeping:
            self.close()  # while NVML is open, the driver does not suspend the GPUs
            return sleeping
        readings = parse(self._child.ask(), now)
        if not readings:
            raise SourceSilentError("NVML lists no GPU")
        return readings


def parse(answer: Mapping[str, object], at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each GPU in the child's answer that has a PCI address."""
    return tuple(_build_reading(values, gpu, at) for values, gpu in list_gpus(answer, "bus_id", address))


def _build_reading(card: Mapping[str, object], gpu: str, at: Moment) -> GpuReading:
    name, level = card.get("name"), count(number(card.get("level")))
    reasons = count(number(card.get("reasons")))
    return GpuReading(
        at=at,
        gpu=gpu,
        source=Nvml.name,
        index=count(number(card.get("index"))),
        name=name[:200] if isinstance(name, str) and name else None,
        unique_id=uuid(card.get("uuid")),
        gpu_busy_percent=percent(number(card.get("busy"))),
        memory_busy_percent=percent(number(card.get("memory_busy"))),
        vram_used_bytes=count(number(card.get("memory_used"))),
        vram_total_bytes=count(number(card.get("memory_total"))),
        edge_c=celsius(number(card.get("temperature"))),
        memory_c=celsius(number(card.get("memory_temperature"))),
        power_w=_scale_value(watts, card.get("power_mw"), 1e-3),
        power_cap_w=_scale_value(watts, card.get("power_cap_mw"), 1e-3),
        sclk_hz=hertz(card.get("sm_mhz")),
        mclk_hz=hertz(card.get("memory_mhz")),
        # NVML reports an unknown level as 32.
        performance_level=f"P{level}" if level is not None and level < 16 else None,
        throttled_by=None if reasons is None else limits(hex(reasons)),
        pcie_lanes=count(number(card.get("lanes"))) or None,
        pcie_gts=pcie_gts(count(number(card.get("generation")))),
        pcie_replays=count(number(card.get("replays"))),
        ecc_correctable=count(number(card.get("ecc_corrected"))),
        ecc_uncorrectable=count(number(card.get("ecc_uncorrected"))),
        processes=_list_processes(card.get("processes")),
    )


def _list_processes(listed: object) -> tuple[GpuProcess, ...] | None:
    if not isinstance(listed, list):
        return None
    entries = [entry for entry in listed if isinstance(entry, dict)]
    return tuple(
        GpuProcess(
            pid=pid,
            name=name[:200] if isinstance(name := entry.get("name"), str) else None,
            vram_bytes=count(number(entry.get("memory"))),
        )
        for entry in entries
        if (pid := count(number(entry.get("pid"))))
    )


def _scale_value(check: Callable[[float | None], float | None], value: object, factor: float) -> float | None:
    known = number(value)
    return None if known is None else check(round(known * factor, 3))
