"""Power: a card draws more than its limit allows, or its limit was lowered under way. It sets no limit itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.series import lasted_s, run_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """For `hold_s`: `over_fraction` above the cap, or a cap `drop_fraction` below the highest of this attempt.

    It only tells; `act` changes nothing. Peaks above the cap within a second are how regulation works.
    """

    name: ClassVar[str] = "power"
    enabled: bool = True
    act: Act = False
    over_fraction: float = 0.15
    drop_fraction: float = 0.2
    hold_s: float = 60.0

    def check(self, history: History) -> RedFlag | None:
        """Flag the first card out of its limits."""
        if history.over:
            return None
        for gpu, readings in history.readings_by_gpu().items():
            highest_w = history.cards[gpu].highest_cap_w
            over = run_of(readings, self._over, history.now)
            if len(over) > 1 and lasted_s(over) >= self.hold_s:
                drawn_w, cap_w = over[-1].power_w or 0.0, over[-1].power_cap_w
                text = f"draws {drawn_w:.0f} W for {lasted_s(over):.0f} s, its cap is {cap_w:.0f} W"
                return self._flag(history, gpu, text, "over")
            if not highest_w:
                continue
            bound_w = highest_w * (1 - self.drop_fraction)
            low = run_of(readings, partial(_below, bound_w=bound_w), history.now)
            if len(low) > 1 and lasted_s(low) >= self.hold_s:
                text = f"its power cap fell from {highest_w:.0f} to {low[-1].power_cap_w:.0f} W"
                return self._flag(history, gpu, text, "cap")
        return None

    def _over(self, reading: GpuReading) -> bool | None:
        if reading.power_w is None or not reading.power_cap_w:
            return None
        return reading.power_w > reading.power_cap_w * (1 + self.over_fraction)

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


def _below(reading: GpuReading, bound_w: float) -> bool | None:
    return None if reading.power_cap_w is None else reading.power_cap_w < bound_w


OVER = Diagnosis(
    ruled_out=("not a peak: it lasted",),
    causes=("a sensor of the board's total power beside a cap of the chip's", "firmware that regulates too late"),
    advice=("if the machine reboots under load, the power supply is the first suspect [owner's record of 9 November]",),
)
LOWERED = Diagnosis(
    causes=("somebody set it", "the driver was reloaded or the card reset, which brings defaults back"),
    advice=("steps will be slower: rocm-smi --showmaxpower names the present cap",),
)
