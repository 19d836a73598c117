"""Throttling: a limit other than power holds a GPU's clocks down. The power limit at full load is normal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.rules.bounds import measure_lasting
from supervisor.core.stats.holds import newest_of, run_of
from supervisor.core.units import MHZ


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """A limit other than power and current holds the clocks down for `hold_s`."""

    name: ClassVar[str] = "throttling"
    group: ClassVar[Group] = "gpus"
    enabled: bool = True
    hold_s: float = 120.0

    def may_flag(self, history: History) -> bool:
        """Whether a GPU is slowed down, by the newest reading that has the reasons."""
        return not history.over and any(
            _is_slowed_now(readings, history.now) for readings in history.readings_by_gpu().values()
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long each GPU has been slowed down."""
        if (why := history.why_no_gpu_readings()) is not None:
            return not_applicable("GPUs that are slowed down", why)
        return tuple(self._measure_gpu(history, gpu, readings) for gpu, readings in history.readings_by_gpu().items())

    def _measure_gpu(self, history: History, gpu: str, readings: Iterable[GpuReading]) -> Gauge:
        what = f"{gpu} slowed down by other than power"
        if newest_of(readings, lambda reading: reading.throttled_by is not None, history.now) is None:
            return Gauge(what=what, not_watched="throttling reasons not reported by this GPU")
        run = run_of(readings, _is_slowed, history.now)
        return measure_lasting(
            history, run, self.hold_s, Gauge(what=what, observe=partial(_observe_limits, history, gpu, run))
        )


def _observe_limits(history: History, gpu: str, run: tuple[GpuReading, ...]) -> Observation:
    newest = run[-1]
    clock = "" if newest.sclk_hz is None else f", core clock {newest.sclk_hz / MHZ:.0f} MHz"
    return Observation(
        message=f"{gpu}: slowed down by {', '.join(_list_limits(newest))} for {history.lasted_s(run):.0f} s{clock}",
        can_save=True,
        subject=gpu,
        diagnosis=SLOWED,
    )


def _is_slowed_now(readings: Iterable[GpuReading], now: Moment) -> bool:
    newest = newest_of(readings, lambda reading: reading.throttled_by is not None, now)
    return newest is not None and bool(_list_limits(newest))


def _list_limits(reading: GpuReading) -> tuple[str, ...]:
    return tuple(text for text in reading.throttled_by or () if text not in ("power", "current"))


def _is_slowed(reading: GpuReading) -> bool | None:
    return None if reading.throttled_by is None else bool(_list_limits(reading))


SLOWED = Diagnosis(
    ruled_out=(
        "not the power limit: that is left out",
        "not RDNA3's false bit on a cold GPU: a thermal bit counts near its limit only [ROCm/rocm-systems#11781]",
    ),
    causes=("the cooler is at its end: dust, fan curve, hot room", "voltage regulators without air over them"),
    advice=("a lower power cap, a steeper fan curve; throughput_drop shows what it costs",),
)
