"""Throttling: heat or its regulators hold a card's clocks down. A power limit at full load is how cards work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.rules.bounds import lasting
from supervisor.core.stats.holds import newest_of, run_of
from supervisor.core.unseen import no_cards


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """A limit other than power and current holds the clocks down for `hold_s`."""

    name: ClassVar[str] = "throttling"
    group: ClassVar[Group] = "cards"
    enabled: bool = True
    hold_s: float = 120.0

    def check(self, history: History) -> RedFlag | None:
        """Flag the first card that is slowed down."""
        if history.over:
            return None
        for gpu, readings in history.readings_by_gpu().items():
            run = run_of(readings, _slowed, history.now)
            if history.has_lasted(run, self.hold_s):
                return self._flag(history, gpu, run)
        return None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how long each card has been slowed down."""
        if (why := no_cards(history)) is not None:
            return unwatched(self.name, "cards that are slowed down", why)
        return tuple(self._of_card(history, gpu, readings) for gpu, readings in history.readings_by_gpu().items())

    def _of_card(self, history: History, gpu: str, readings: Iterable[GpuReading]) -> Gauge:
        what = f"{gpu} slowed down by other than power"
        if newest_of(readings, lambda reading: _slowed(reading) is not None, history.now) is None:
            return Gauge(rule=self.name, what=what, not_watched="throttling reasons not reported by this GPU")
        return lasting(history, run_of(readings, _slowed, history.now), self.hold_s, Gauge(rule=self.name, what=what))

    def _flag(self, history: History, gpu: str, run: tuple[GpuReading, ...]) -> RedFlag:
        newest = run[-1]
        clock = "" if newest.sclk_hz is None else f", core clock {newest.sclk_hz / 1e6:.0f} MHz"
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"{gpu}: slowed down by {', '.join(_limits(newest))} for {history.lasted_s(run):.0f} s{clock}",
            can_save=True,
            subject=gpu,
            diagnosis=SLOWED,
        )


def _limits(reading: GpuReading) -> tuple[str, ...]:
    return tuple(text for text in reading.throttled_by or () if text not in ("power", "current"))


def _slowed(reading: GpuReading) -> bool | None:
    return None if reading.throttled_by is None else bool(_limits(reading))


SLOWED = Diagnosis(
    ruled_out=(
        "not the power limit: that is left out",
        "not RDNA3's false bit on a cold card: a thermal bit counts near its limit only [ROCm/rocm-systems#11781]",
    ),
    causes=("the cooler is at its end: dust, fan curve, hot room", "voltage regulators without air over them"),
    advice=("a lower power cap, a steeper fan curve; throughput_drop shows what it costs",),
)
