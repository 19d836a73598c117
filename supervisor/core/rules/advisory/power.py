"""Power: a GPU draws more than its limit allows, or its limit was lowered during the attempt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.rules.bounds import Bound
from supervisor.core.stats.holds import lasted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """For `hold_s`: `over_fraction` above the cap, or a cap `drop_fraction` below the highest of this attempt.

    Peaks above the cap within a second are how regulation works.
    """

    name: ClassVar[str] = "power"
    group: ClassVar[Group] = "gpus"
    enabled: bool = True
    over_fraction: float = 0.15
    drop_fraction: float = 0.2
    hold_s: float = 60.0

    def may_flag(self, history: History) -> bool:
        """Whether the newest reading of a GPU is beyond one of its limits."""
        return not history.over and any(
            self._bound_drawn().may_be_reached(readings) or self._bound_cap(highest_w).may_be_reached(readings)
            for gpu, readings in history.readings_by_gpu().items()
            if (highest_w := history.gpu_facts[gpu].highest_cap_w)
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return what each GPU draws of its cap, and what its cap is."""
        if (why := history.why_no_gpu_readings()) is not None:
            return not_applicable("power of its GPUs", why)
        return tuple(
            gauge
            for gpu, readings in history.readings_by_gpu().items()
            for gauge in self._measure_gpu(gpu, readings, history.gpu_facts[gpu].highest_cap_w or 0.0, history.now)
        )

    def _measure_gpu(
        self, gpu: str, readings: Sequence[GpuReading], highest_w: float, now: Moment
    ) -> tuple[Gauge, Gauge]:
        drawn, cap = self._bound_drawn(), self._bound_cap(highest_w)
        over = Gauge(
            what=f"power drawn, in percent of the cap, of {gpu}",
            unit="%",
            rest=100.0,
            observe=lambda: _observe_drawn(gpu, drawn.run(readings, now)),
        )
        lowered = Gauge(
            what=f"power cap of {gpu}",
            unit="W",
            rest=highest_w,
            observe=lambda: _observe_cap(gpu, highest_w, cap.run(readings, now)[-1]),
        )
        return drawn.measure(readings, now, over), cap.measure(readings, now, lowered)

    def _bound_drawn(self) -> Bound[GpuReading]:
        limit = 100 * (1 + self.over_fraction)
        return Bound(value=_drawn_percent, limit=limit, hold_s=self.hold_s, strict=True)

    def _bound_cap(self, highest_w: float) -> Bound[GpuReading]:
        limit_w = highest_w * (1 - self.drop_fraction)
        return Bound(value=_cap_w, limit=limit_w, hold_s=self.hold_s, below=True, strict=True)


def _observe_drawn(gpu: str, run: tuple[GpuReading, ...]) -> Observation:
    drawn_w, cap_w = run[-1].power_w or 0.0, run[-1].power_cap_w
    return Observation(
        message=f"{gpu}: draws {drawn_w:.0f} W for {lasted_s(run):.0f} s, its cap is {cap_w:.0f} W",
        can_save=True,
        subject=f"{gpu} over",
        diagnosis=OVER,
    )


def _observe_cap(gpu: str, highest_w: float, newest: GpuReading) -> Observation:
    return Observation(
        message=f"{gpu}: its power cap fell from {highest_w:.0f} to {newest.power_cap_w:.0f} W",
        can_save=True,
        subject=f"{gpu} cap",
        diagnosis=LOWERED,
    )


def _drawn_percent(reading: GpuReading) -> float | None:
    if reading.power_w is None or not math.isfinite(reading.power_w) or not reading.power_cap_w:
        return None
    return 100 * reading.power_w / reading.power_cap_w


def _cap_w(reading: GpuReading) -> float | None:
    return reading.power_cap_w


OVER = Diagnosis(
    ruled_out=("not a peak: it lasted",),
    causes=(
        "the sensor measures the whole board, the cap limits the chip",
        "firmware that regulates too late",
    ),
    advice=(
        "if the machine reboots under load, the power supply is the first suspect "
        "[robust-thermal-image-object-detection, 9 November 2025]",
    ),
)
LOWERED = Diagnosis(
    causes=(
        "set by a person or a tool",
        "the driver was reloaded or the GPU reset, which brings defaults back",
    ),
    advice=("steps will be slower: rocm-smi --showmaxpower shows the present cap",),
)
