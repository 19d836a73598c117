"""Thermal: a card is too hot. A sensor that reads what no chip survives, or nothing, is no heat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.gpu_facts import hottest
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import Bound
from supervisor.core.stats.holds import lasted_s
from supervisor.core.unseen import no_cards

AT_WORK_C = 60.0
"""What a cooled card reads under load: nearness counts from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """The hottest of a card's sensors at `warn_c` for `hold_s` is told, at `limit_c` it acts where `act` says so.

    It tells by default: cards guard themselves, and 110 C at the hot spot is within what AMD allows some of them.
    """

    name: ClassVar[str] = "thermal"
    group: ClassVar[Group] = "cards"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: Act = False
    warn_c: float = 100.0
    limit_c: float = 110.0
    hold_s: float = 30.0

    def check(self, history: History) -> RedFlag | None:
        """Flag the first card at the limit, or else the first that is worth telling."""
        if history.over:
            return None
        worst: RedFlag | None = None
        bounds = self._bounds()
        for gpu, readings in history.readings_by_gpu().items():
            for bound, severity in bounds:
                run = bound.run(readings, history.now)
                if bound.held(run):
                    if worst is None or severity > worst.severity:
                        worst = self._flag(history, gpu, run, bound.limit, severity)
                    break
        return worst

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how hot each card is."""
        if (why := no_cards(history)) is not None:
            return unwatched(self.name, "the hottest sensor of its cards", why)
        return tuple(
            bound.watched(
                readings,
                history.now,
                Gauge(rule=self.name, what=f"hottest sensor of {gpu}", unit="C", rest=AT_WORK_C, severity=severity),
            )
            for gpu, readings in history.readings_by_gpu().items()
            for bound, severity in self._bounds()
        )

    def _bounds(self) -> tuple[tuple[Bound[GpuReading], Severity], ...]:
        limit = Bound(value=_celsius, limit=self.limit_c, hold_s=self.hold_s)
        warn = Bound(value=_celsius, limit=self.warn_c, hold_s=self.hold_s)
        return (limit, Severity.acting(act=self.act)), (warn, Severity.WARNING)

    def _flag(
        self, history: History, gpu: str, run: tuple[GpuReading, ...], limit_c: float, severity: Severity
    ) -> RedFlag:
        newest = run[-1]
        sensor, celsius = hottest(newest) or ("", limit_c)
        return RedFlag(
            rule=self.name,
            severity=severity,
            at=history.now,
            message=f"{gpu}: {sensor} at {celsius:.0f} C, {limit_c:.0f} C or more for {lasted_s(run):.0f} s",
            can_save=True,
            subject=gpu,
            diagnosis=HEAT,
        )


def _celsius(reading: GpuReading) -> float | None:
    found = hottest(reading)
    return None if found is None else found[1]


HEAT = Diagnosis(
    ruled_out=("not a single reading: it lasted",),
    causes=("dust, a stopped fan, a hot room", "a power limit above what the cooler carries"),
    advice=(
        "a lower power cap (rocm-smi --setpoweroverdrive) costs a few percent of speed and many degrees",
        "at its own limit the card slows down, at its emergency limit the driver powers the machine off "
        "[kernel: amdgpu, over temperature range (SW CTF)]",
    ),
)
