"""VRAM high: a card's memory runs full. It does not ask whose memory it is: the next allocation fails all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.series import lasted_s, newest_of, run_of
from supervisor.core.watched import Watched


@dataclass(frozen=True, slots=True, kw_only=True)
class VramHigh:
    """VRAM use of `warn_fraction` is told; `limit_fraction` (or `limit_bytes`, where given) for `hold_s` acts.

    Where the job names no cards and the machine has several, nobody knows whose card is full: that is only told.
    """

    name: ClassVar[str] = "vram_high"
    enabled: bool = True
    act: Act = True
    warn_fraction: float = 0.83
    """5 of 6 GB."""
    limit_fraction: float = 0.95
    limit_bytes: int | None = None
    hold_s: float = 10.0

    def check(self, history: History) -> RedFlag | None:
        """Flag the fullest card at its limit, or else the fullest one that is worth telling."""
        if history.over:
            return None
        cards = history.readings_by_gpu()
        act = self.act and (bool(history.gpus_used) or len(cards) == 1)
        newest = [one for all_of in cards.values() if (one := newest_of(all_of, _is_known, history.now)) is not None]
        fullest = sorted(newest, key=lambda one: (_fraction(one) or 0.0, one.memory_used_bytes or 0), reverse=True)
        for reading in fullest:
            run = run_of(cards[reading.gpu], self._is_full, history.now)
            if len(run) > 1 and lasted_s(run) >= self.hold_s:
                return self._flag(history, reading, Severity.acting(act=act), f" for {lasted_s(run):.0f} s")
        for reading in fullest:
            fraction = _fraction(reading)
            if fraction is not None and fraction >= self.warn_fraction:
                return self._flag(history, reading, Severity.WARNING, "")
        return None

    def watch(self, history: History) -> Watched | None:
        """Return how full the fullest card is."""
        known = [newest_of(one, _is_known, history.now) for one in history.readings_by_gpu().values()]
        fullest = max((one for one in known if one is not None), key=lambda one: _fraction(one) or 0.0, default=None)
        if fullest is None or history.over:
            return Watched(rule=self.name, what="memory of the card", not_watched="no reading of its cards")
        what, fraction = f"memory of {fullest.gpu}", _fraction(fullest)
        if self.limit_bytes is not None:
            used = fullest.memory_used_bytes
            return Watched(rule=self.name, what=what, unit="bytes", now=used, limit=self.limit_bytes)
        percent = None if fraction is None else 100 * fraction
        return Watched(rule=self.name, what=what, unit="%", now=percent, limit=100 * self.limit_fraction)

    def _is_full(self, reading: GpuReading) -> bool | None:
        used, fraction = reading.memory_used_bytes, _fraction(reading)
        if self.limit_bytes is not None:
            return None if used is None else used >= self.limit_bytes
        return None if fraction is None else fraction >= self.limit_fraction

    def _flag(self, history: History, reading: GpuReading, severity: Severity, how_long: str) -> RedFlag:
        used, total, fraction = reading.memory_used_bytes, reading.memory_total_bytes, _fraction(reading)
        share = "" if fraction is None or total is None else f" of {total / 1e9:.2f} GB ({fraction:.0%})"
        return RedFlag(
            rule=self.name,
            severity=severity,
            at=history.now,
            message=f"{reading.gpu}: VRAM at {(used or 0) / 1e9:.2f} GB{share}{how_long}",
            can_save=True,
            subject=reading.gpu,
            diagnosis=FULL,
        )


def _is_known(reading: GpuReading) -> bool:
    return reading.memory_used_bytes is not None


def _fraction(reading: GpuReading) -> float | None:
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    return used / total if used is not None and total else None


FULL = Diagnosis(
    causes=(
        "the batch or the image size is too large for the card [ultralytics/ultralytics#4679: lower it on a resume]",
        "another program holds a part of it: supervisorctl gpus shows each card's processes",
        "it grows: vram_leak and fragmentation tell of that",
    ),
    advice=(
        "a smaller batch or imgsz; with ultralytics both may change on a resume",
        "amp=True takes about half of it",
    ),
)
