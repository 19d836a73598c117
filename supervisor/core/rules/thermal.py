"""Thermal: a GPU is too hot. A missing sensor value, or one that no chip survives, does not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.gpu_facts import hottest
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import Bound
from supervisor.core.stats.holds import lasted_s

AT_WORK_C = 60.0
"""What a cooled GPU reads under load: the share of the limit counts from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """The hottest of a GPU's sensors at `warn_c` for `hold_s` is a warning, at `limit_c` it acts where `act` is set.

    It warns by default: GPUs protect themselves, and AMD allows 110 C at the hot spot of some.
    """

    name: ClassVar[str] = "thermal"
    group: ClassVar[Group] = "gpus"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: Act = False
    warn_c: float = 100.0
    limit_c: float = 110.0
    hold_s: float = 30.0

    def may_flag(self, history: History) -> bool:
        """Whether the newest reading of a GPU is as hot as the lower limit."""
        lower = Bound(value=_read_celsius, limit=min(self.warn_c, self.limit_c), hold_s=self.hold_s)
        return not history.over and any(map(lower.may_be_reached, history.readings_by_gpu().values()))

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how hot each GPU is."""
        if (why := history.why_no_gpu_readings()) is not None:
            return not_applicable("the hottest sensor of its GPUs", why)
        return tuple(
            bound.measure(
                readings,
                history.now,
                Gauge(
                    what=f"hottest sensor of {gpu}",
                    unit="C",
                    rest=AT_WORK_C,
                    severity=severity,
                    observe=partial(_observe_heat, gpu, readings, bound, history.now),
                ),
            )
            for gpu, readings in history.readings_by_gpu().items()
            for bound, severity in self._list_bounds()
        )

    def _list_bounds(self) -> tuple[tuple[Bound[GpuReading], Severity], ...]:
        limit = Bound(value=_read_celsius, limit=self.limit_c, hold_s=self.hold_s)
        warn = Bound(value=_read_celsius, limit=self.warn_c, hold_s=self.hold_s)
        return (limit, Severity.acting(act=self.act)), (warn, Severity.WARNING)


def _observe_heat(gpu: str, readings: Sequence[GpuReading], bound: Bound[GpuReading], now: Moment) -> Observation:
    run = bound.run(readings, now)
    sensor, celsius = hottest(run[-1]) or ("", bound.limit)
    return Observation(
        message=f"{gpu}: {sensor} at {celsius:.0f} C, {bound.limit:.0f} C or more for {lasted_s(run):.0f} s",
        can_save=True,
        subject=gpu,
        diagnosis=HEAT,
    )


def _read_celsius(reading: GpuReading) -> float | None:
    found = hottest(reading)
    return None if found is None else found[1]


HEAT = Diagnosis(
    ruled_out=("not a single reading: it lasted",),
    causes=("dust, a stopped fan, a hot room", "a power limit above what the cooler carries"),
    advice=(
        "a lower power cap (rocm-smi --setpoweroverdrive) costs a few percent of speed and many degrees",
        "at its own limit the GPU slows down, at its emergency limit the driver powers the machine off "
        "[kernel: amdgpu, over temperature range (SW CTF)]",
    ),
)
