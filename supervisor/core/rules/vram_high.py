"""VRAM high: a card's memory runs full. It does not ask whose memory it is: the next allocation fails all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import Bound
from supervisor.core.stats.holds import lasted_s, newest_of
from supervisor.core.unseen import no_cards


@dataclass(frozen=True, slots=True, kw_only=True)
class VramHigh:
    """VRAM use of `warn_fraction` is told; `limit_fraction` (or `limit_bytes`, where given) for `hold_s` acts.

    Where the job names no cards and the machine has several, nobody knows whose card is full: that is only told.
    """

    name: ClassVar[str] = "vram_high"
    group: ClassVar[Group] = "memory"
    cause: ClassVar[str] = causes.FRAGMENTATION
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
        cards, full = history.readings_by_gpu(), self._full()
        newest = [item for all_of in cards.values() if (item := newest_of(all_of, _is_known, history.now)) is not None]
        fullest = sorted(newest, key=lambda entry: (_percent(entry) or 0.0, entry.memory_used_bytes or 0), reverse=True)
        for reading in fullest:
            run = full.run(cards[reading.gpu], history.now)
            if full.held(run):
                return self._flag(history, reading, self._severity(history), f" for {lasted_s(run):.0f} s")
        for reading in fullest:
            percent = _percent(reading)
            if percent is not None and percent >= 100 * self.warn_fraction:
                return self._flag(history, reading, Severity.WARNING, "")
        return None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how full each card is, against what is told and what acts."""
        if (why := no_cards(history)) is not None:
            return unwatched(self.name, "memory of its cards", why)
        return tuple(
            gauge
            for gpu, readings in history.readings_by_gpu().items()
            for gauge in self._of_card(history, f"memory of {gpu}", readings)
        )

    def _of_card(self, history: History, what: str, readings: Sequence[GpuReading]) -> tuple[Gauge, Gauge]:
        newest = newest_of(readings, _is_known, history.now)
        percent = None if newest is None else _percent(newest)
        told = Gauge(
            rule=self.name,
            what=what,
            unit="%",
            now=percent,
            limit=100 * self.warn_fraction,
            not_watched="not in any reading" if percent is None else None,
        )
        unit = "%" if self.limit_bytes is None else "bytes"
        named = Gauge(rule=self.name, what=what, unit=unit, severity=self._severity(history))
        return told, self._full().watched(readings, history.now, named)

    def _full(self) -> Bound[GpuReading]:
        if self.limit_bytes is not None:
            return Bound(value=_used_bytes, limit=self.limit_bytes, hold_s=self.hold_s)
        return Bound(value=_percent, limit=100 * self.limit_fraction, hold_s=self.hold_s)

    def _severity(self, history: History) -> Severity:
        known = bool(history.gpus_used) or len(history.readings_by_gpu()) == 1
        return Severity.acting(act=self.act if known else False)

    def _flag(self, history: History, reading: GpuReading, severity: Severity, how_long: str) -> RedFlag:
        used, total, percent = reading.memory_used_bytes, reading.memory_total_bytes, _percent(reading)
        share = "" if percent is None or total is None else f" of {total / 1e9:.2f} GB ({percent:.0f}%)"
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


def _used_bytes(reading: GpuReading) -> float | None:
    return reading.memory_used_bytes


def _percent(reading: GpuReading) -> float | None:
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    return 100 * used / total if used is not None and total else None


FULL = Diagnosis(
    causes=(
        "the batch or the image size is too large for the card [ultralytics/ultralytics#4679: lower it on a resume]",
        "another program holds a part of it: supervisorctl gpus shows each card's processes",
        "it grows: see vram_leak and fragmentation",
    ),
    advice=(
        "a smaller batch or imgsz; with ultralytics both may change on a resume",
        "amp=True takes about half of it",
    ),
)
