"""Power: a card draws more than its limit allows, or its limit was lowered under way. It sets no limit itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.rules.bounds import Bound
from supervisor.core.stats.holds import lasted_s
from supervisor.core.unseen import no_cards


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """For `hold_s`: `over_fraction` above the cap, or a cap `drop_fraction` below the highest of this attempt.

    Peaks above the cap within a second are how regulation works.
    """

    name: ClassVar[str] = "power"
    group: ClassVar[Group] = "cards"
    enabled: bool = True
    over_fraction: float = 0.15
    drop_fraction: float = 0.2
    hold_s: float = 60.0

    def check(self, history: History) -> RedFlag | None:
        """Flag the first card out of its limits."""
        if history.over:
            return None
        drawn = self._over()
        for gpu, readings in history.readings_by_gpu().items():
            highest_w = history.cards[gpu].highest_cap_w
            if not highest_w:
                continue
            over = drawn.run(readings, history.now)
            if drawn.held(over):
                drawn_w, cap_w = over[-1].power_w or 0.0, over[-1].power_cap_w
                text = f"draws {drawn_w:.0f} W for {lasted_s(over):.0f} s, its cap is {cap_w:.0f} W"
                return self._flag(history, gpu, text, "over")
            cap = self._lowered(highest_w)
            low = cap.run(readings, history.now)
            if cap.held(low):
                text = f"its power cap fell from {highest_w:.0f} to {low[-1].power_cap_w:.0f} W"
                return self._flag(history, gpu, text, "cap")
        return None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return what each card draws of its cap, and what its cap is."""
        if (why := no_cards(history)) is not None:
            return unwatched(self.name, "power of its cards", why)
        return tuple(
            bound.watched(readings, history.now, Gauge(rule=self.name, what=f"{what} of {gpu}", unit=unit, rest=rest))
            for gpu, readings in history.readings_by_gpu().items()
            for highest_w in (history.cards[gpu].highest_cap_w or 0.0,)
            for bound, what, unit, rest in (
                (self._over(), "power drawn, in percent of the cap,", "%", 100.0),
                (self._lowered(highest_w), "power cap", "W", highest_w),
            )
        )

    def _over(self) -> Bound[GpuReading]:
        limit = 100 * (1 + self.over_fraction)
        return Bound(value=_drawn_percent, limit=limit, hold_s=self.hold_s, strict=True)

    def _lowered(self, highest_w: float) -> Bound[GpuReading]:
        limit_w = highest_w * (1 - self.drop_fraction)
        return Bound(value=_cap_w, limit=limit_w, hold_s=self.hold_s, below=True, strict=True)

    def _flag(self, history: History, gpu: str, text: str, what: str) -> RedFlag:
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"{gpu}: {text}",
            can_save=True,
            subject=f"{gpu} {what}",
            diagnosis=OVER if what == "over" else LOWERED,
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
    advice=("if the machine reboots under load, the power supply is the first suspect [owner's record of 9 November]",),
)
LOWERED = Diagnosis(
    causes=(
        "set by a person or a tool",
        "the driver was reloaded or the card reset, which brings defaults back",
    ),
    advice=("steps will be slower: rocm-smi --showmaxpower shows the present cap",),
)
