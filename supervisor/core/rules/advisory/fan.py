"""Fan: it is stopped while the GPU is hot. A GPU that stops its fan while cool, or that has none, is not flagged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.gpu_facts import hottest
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.rules.bounds import measure_lasting
from supervisor.core.stats.holds import run_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """0 rpm at `hot_c` and above for `hold_s`, of a fan that was seen to turn.

    A fan that never turned in this attempt may not exist; heat is reported by `thermal`.
    """

    name: ClassVar[str] = "fan"
    group: ClassVar[Group] = "gpus"
    enabled: bool = True
    hot_c: float = 80.0
    hold_s: float = 60.0

    def may_flag(self, history: History) -> bool:
        """Whether a fan that was seen to turn is stopped, by the newest reading."""
        return not history.over and any(
            history.gpu_facts[gpu].fan_turned and self._is_stopped_hot(readings[-1]) is not False
            for gpu, readings in history.readings_by_gpu().items()
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long the fan of each GPU has been stopped while it is hot."""
        if (why := history.why_no_gpu_readings()) is not None:
            return not_applicable("stopped fans", why)
        return tuple(self._measure_gpu(history, gpu, readings) for gpu, readings in history.readings_by_gpu().items())

    def _measure_gpu(self, history: History, gpu: str, readings: Iterable[GpuReading]) -> Gauge:
        what = f"fan of {gpu} stopped at {self.hot_c:g} C and more"
        if not history.gpu_facts[gpu].fan_turned:
            return Gauge(what=what, not_watched="it was never seen to turn")
        run = run_of(readings, self._is_stopped_hot, history.now)
        named = Gauge(what=what, observe=partial(self._observe_fan, history, gpu, run))
        return measure_lasting(history, run, self.hold_s, named)

    def _observe_fan(self, history: History, gpu: str, run: tuple[GpuReading, ...]) -> Observation:
        sensor, celsius = hottest(run[-1]) or ("", self.hot_c)
        return Observation(
            message=f"{gpu}: fan stopped for {history.lasted_s(run):.0f} s, {sensor} at {celsius:.0f} C",
            can_save=True,
            subject=gpu,
            diagnosis=FAN_STOPPED,
        )

    def _is_stopped_hot(self, reading: GpuReading) -> bool | None:
        if reading.fan_rpm is None or reading.fan_rpm > 0:
            return None if reading.fan_rpm is None else False
        found = hottest(reading)
        return None if found is None else found[1] >= self.hot_c


FAN_STOPPED = Diagnosis(
    ruled_out=("not a passive GPU: this fan has turned before", "not the rest of a cool GPU: it is hot"),
    causes=("a dead or blocked fan", "a manual fan setting of 0 (pwm1_enable) [kernel docs, amdgpu thermal control]"),
    advice=("give the fan back to the firmware: rocm-smi --resetfans; look at it",),
)
