"""Thermal: a card is too hot. A sensor that reads what no chip survives, or nothing, is no heat."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.card_facts import hottest
from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.series import lasted_s, run_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """The hottest of a card's sensors at `warn_c` for `hold_s` is told, at `limit_c` it acts where `act` says so.

    It tells by default: cards guard themselves, and 110 C at the hot spot is within what AMD allows some of them.
    """

    name: ClassVar[str] = "thermal"
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
        for gpu, readings in history.readings_by_gpu().items():
            if _hot(readings[-1], self.warn_c) is False:
                continue
            for limit_c, severity in ((self.limit_c, Severity.acting(act=self.act)), (self.warn_c, Severity.WARNING)):
                run = run_of(readings, partial(_hot, limit_c=limit_c), history.now)
                if len(run) > 1 and lasted_s(run) >= self.hold_s:
                    if worst is None or severity > worst.severity:
                        worst = self._flag(history, gpu, run, limit_c, severity)
                    break
        return worst

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


def _hot(reading: GpuReading, limit_c: float) -> bool | None:
    found = hottest(reading)
    return None if found is None else found[1] >= limit_c


HEAT = Diagnosis(
    ruled_out=("not a single reading: it lasted",),
    causes=("dust, a fan that stands, a hot room", "a power limit above what the cooler carries"),
    advice=(
        "a lower power cap (rocm-smi --setpoweroverdrive) costs a few percent of speed and many degrees",
        "at its own limit the card slows down, at its emergency limit the driver powers the machine off "
        "[kernel: amdgpu, over temperature range (SW CTF)]",
    ),
)
