"""Which of the host's GPUs a job runs on, what they are, and which of them report readings."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.config.derive import gpus_of
from supervisor.config.settings import JobSettings
from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.daemon.launch.launch_spec import VisibleGpu
from supervisor.daemon.telemetry import NewestReadings

NVIDIA = ("nvml", "nvidia-smi")
GAP_READINGS = 4
GAP_S = 3.0
"""A GPU that was not heard of for so many readings, and so long, did not answer."""


class GpuAvailability:
    """Knows since when each GPU has answered without a gap."""

    def __init__(self, interval_s: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._answered: dict[str, tuple[Moment, Moment]] = {}

    def take(self, event: ev.Event) -> None:
        """Take in an event."""
        for reading in filter(_has_measurement, event.readings if isinstance(event, ev.GpusRead) else ()):
            since, last = self._answered.get(reading.gpu, (reading.at, reading.at))
            self._answered[reading.gpu] = (
                reading.at if reading.at.seconds_since(last) > self.gap_s() else since,
                reading.at,
            )

    def answering_s(self, now: Moment) -> tuple[tuple[str, float], ...]:
        """Return for how long each GPU that answers has done so, in the order of addresses."""
        return tuple(
            (gpu, now.seconds_since(since))
            for gpu, (since, last) in sorted(self._answered.items())
            if now.seconds_since(last) <= self.gap_s()
        )

    def gap_s(self) -> float:
        """Return for how long a GPU may be silent before it counts as one that does not answer."""
        return max(GAP_S, GAP_READINGS * self._interval_s())


def _has_measurement(reading: GpuReading) -> bool:
    """Whether the GPU itself answered: a reading has a measured value, or the GPU is suspended."""
    if reading.runtime_status in ("suspended", "suspending"):
        return True
    measured = (
        reading.gpu_busy_percent,
        reading.memory_used_bytes,
        reading.edge_c,
        reading.junction_c,
        reading.power_w,
    )
    return any(value is not None for value in measured)


class JobGpus:
    """Answers from the newest readings: a GPU that never answered is not known."""

    def __init__(self, newest: NewestReadings) -> None:
        self._newest = newest

    def used_by(self, settings: JobSettings) -> tuple[str, ...]:
        """Return the PCI addresses that a job's `gpus` name; empty: every GPU."""
        return gpus_of(settings, self._newest.gpus)

    def gfx_versions(self, settings: JobSettings) -> tuple[str, ...]:
        """Return the gfx targets of the GPUs that a job runs on, as far as they are known."""
        used = self.used_by(settings)
        readings = self._newest.gpus.values()
        return tuple(
            reading.gfx_version for reading in readings if reading.gfx_version and (not used or reading.gpu in used)
        )

    def visible(self, gpu: str | None) -> VisibleGpu | None:
        """Return how a training is shown one GPU alone; None for none, and for one that never answered.

        AMD's GPUs are counted by ROCr in the order of their addresses and hidden below HIP, so that the training
        finds its GPU as the first and only one, whatever its owner had set. ultralytics sets CUDA_VISIBLE_DEVICES
        itself, to the device that it is given: for NVIDIA's GPUs that is the GPU's own number.
        """
        reading = self._newest.gpus.get(gpu) if gpu is not None else None
        if reading is None:
            return None
        nvidia = reading.source in NVIDIA
        mine = sorted(gpu for gpu, item in self._newest.gpus.items() if (item.source in NVIDIA) == nvidia)
        number = str(mine.index(reading.gpu))
        if nvidia:
            env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": number}
            return VisibleGpu(env=env, device=number)
        env = {"ROCR_VISIBLE_DEVICES": number, "HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}
        return VisibleGpu(env=env, device="0")
