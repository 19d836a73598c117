"""Disk low: no room for the next checkpoint. It stops before a save fails halfway, and frees nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.readings import DiskReading, HostReading
from supervisor.core.remedies import causes
from supervisor.core.stats.holds import newest_of
from supervisor.core.unseen import ENDED

SLOPE_OVER_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLow:
    """Free space below `warn_bytes`, or below `warn_fraction` of the disk, is told; below `limit_bytes` acts.

    Told too: a disk that fills so fast, over half an hour with 99.9 % confidence, that `warn_left_s` are left.
    Nothing is saved before such a stop: a checkpoint written into a full disk is a destroyed one.
    """

    name: ClassVar[str] = "disk_low"
    group: ClassVar[Group] = "storage"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: Act = True
    warn_bytes: int = 2_000_000_000
    warn_fraction: float = 0.02
    limit_bytes: int = 200_000_000
    warn_left_s: float = 7200.0

    def check(self, history: History) -> RedFlag | None:
        """Flag the fullest of the disks that the newest reading of disks names."""
        newest = _newest(history)
        if history.over or newest is None:
            return None
        for disk in sorted(newest.disks, key=lambda disk_reading: disk_reading.free_bytes):
            if disk.free_bytes < self.limit_bytes:
                return self._flag(history, disk, Severity.acting(act=self.act))
            if disk.free_bytes < self._warn_bytes(disk):
                return self._flag(history, disk, Severity.WARNING)
        for disk in newest.disks:
            left_s = self._left_s(history, disk)
            if left_s is not None and left_s <= self.warn_left_s:
                return self._flag(history, disk, Severity.WARNING)
        return None

    def _left_s(self, history: History, disk: DiskReading) -> float | None:
        """Return the time until `limit_bytes` are left; None where it does not fill, or that cannot be told."""
        trend = history.disks_used.get(disk.path)
        slope = None if trend is None else trend.slope(SLOPE_OVER_S)
        if slope is None or slope.falls_short_of(0.0) is not None:
            return None
        return slope.left_s(disk.free_bytes - self.limit_bytes)

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how much is free on each disk, and how long it lasts where it fills."""
        newest = _newest(history)
        if newest is None or history.over:
            why = ENDED if history.over else "no reading of its disks"
            return unwatched(self.name, "space on its disks", why)
        return tuple(gauge for disk in newest.disks for gauge in self._of_disk(history, disk))

    def _of_disk(self, history: History, disk: DiskReading) -> tuple[Gauge, ...]:
        left_s = self._left_s(history, disk)
        acts = Gauge(
            rule=self.name,
            what=f"space left on {disk.path}",
            unit="bytes",
            now=disk.free_bytes,
            limit=self.limit_bytes,
            below=True,
            strict=True,
            severity=Severity.acting(act=self.act),
        )
        told = replace(acts, limit=self._warn_bytes(disk), severity=Severity.WARNING)
        fills = Gauge(
            rule=self.name,
            what=f"time until {disk.path} is full",
            unit="s",
            now=left_s,
            limit=self.warn_left_s,
            below=True,
            not_watched="it does not fill, as far as is known" if left_s is None else None,
        )
        return told, acts, fills

    def _warn_bytes(self, disk: DiskReading) -> float:
        return max(self.warn_bytes, disk.total_bytes * self.warn_fraction)

    def _flag(self, history: History, disk: DiskReading, severity: Severity) -> RedFlag:
        left_s = self._left_s(history, disk)
        filling = "" if left_s is None else f", full in {left_s / 3600:.1f} h at this rate"
        return RedFlag(
            rule=self.name,
            severity=severity,
            at=history.now,
            message=f"{disk.path}: {disk.free_bytes / 1e9:.2f} of {disk.total_bytes / 1e9:.2f} GB are free{filling}",
            subject=disk.path,
            diagnosis=FULL,
        )


def _newest(history: History) -> HostReading | None:
    return newest_of(history.host, lambda reading: bool(reading.disks), history.now)


FULL = Diagnosis(
    causes=(
        "checkpoints of every epoch are kept [ultralytics docs, save_period]",
        "caches of data sets, logs or core dumps beside them",
    ),
    advice=(
        "du -xh --max-depth=2 on that path names the largest; fewer kept checkpoints, another disk for runs",
        "nothing is saved on a full disk: a checkpoint written into it is a destroyed one",
    ),
)
