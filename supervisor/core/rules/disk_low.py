"""Disk low: no room for the next checkpoint. It stops the training before a save fails halfway, and frees nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History
from supervisor.core.readings import DiskReading, HostReading, cap_inodes
from supervisor.core.remedies import causes
from supervisor.core.stats.holds import newest_of
from supervisor.core.units import GB, HOUR_S

SLOPE_OVER_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLow:
    """Free space below `warn_bytes`, or below `warn_fraction` of the disk, warns; below `limit_bytes` acts.

    It also warns of a disk that fills so fast, over half an hour with 99.9 % confidence, that `warn_left_s` are left.
    Fewer free inodes than `warn_inodes` warn, fewer than `limit_inodes` act, and neither limit is above 2 % of all.
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
    warn_inodes: int = 10_000
    limit_inodes: int = 100

    def may_flag(self, history: History) -> bool:
        """Whether a disk has less free space or fewer free inodes than a limit, or fills."""
        newest = None if history.over else _find_newest(history)
        return newest is not None and any(
            disk.free_bytes < max(self.limit_bytes, self.find_warn_bytes(disk))
            or disk.has_few_inodes(max(self.limit_inodes, self.warn_inodes))
            or self._fills_soon(history, disk)
            for disk in newest.disks
        )

    def _fills_soon(self, history: History, disk: DiskReading) -> bool:
        left_s = self._left_s(history, disk)
        return left_s is not None and left_s <= self.warn_left_s

    def _left_s(self, history: History, disk: DiskReading) -> float | None:
        """Return the time until `limit_bytes` are left; None where it does not fill, or that is not known."""
        trend = history.disks_used.get(disk.path)
        slope = None if trend is None else trend.slope(SLOPE_OVER_S)
        if slope is None or slope.falls_short_of(0.0) is not None:
            return None
        return slope.left_s(disk.free_bytes - self.limit_bytes)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how much is free on each disk, the fullest first, then how long it lasts where it fills."""
        newest = _find_newest(history)
        if newest is None or history.over:
            why = ATTEMPT_ENDED if history.over else "no reading of its disks"
            return not_applicable("space on its disks", why)
        fullest = sorted(newest.disks, key=lambda disk_reading: disk_reading.free_bytes)
        free = (gauge for disk in fullest for gauge in self._measure_free(history, disk))
        inodes = (gauge for disk in newest.disks for gauge in self._measure_inodes(disk))
        return (*free, *inodes, *(self._measure_left(history, disk) for disk in newest.disks))

    def _measure_free(self, history: History, disk: DiskReading) -> tuple[Gauge, Gauge]:
        acts = Gauge(
            what=f"space left on {disk.path}",
            unit="bytes",
            now=disk.free_bytes,
            limit=self.limit_bytes,
            below=True,
            strict=True,
            severity=Severity.acting(act=self.act),
            observe=partial(self._observe_disk, history, disk),
        )
        return acts, replace(acts, limit=self.find_warn_bytes(disk), severity=Severity.WARNING)

    def _measure_inodes(self, disk: DiskReading) -> tuple[Gauge, ...]:
        """Return how many files each disk has room for, where its file system has a fixed number of them."""
        if disk.free_inodes is None or not disk.total_inodes:
            return ()
        acts = Gauge(
            what=f"inodes left on {disk.path}",
            unit="inodes",
            now=disk.free_inodes,
            limit=cap_inodes(disk.total_inodes, self.limit_inodes),
            below=True,
            strict=True,
            severity=Severity.acting(act=self.act),
            observe=partial(_observe_inodes, disk),
        )
        return acts, replace(acts, limit=cap_inodes(disk.total_inodes, self.warn_inodes), severity=Severity.WARNING)

    def _measure_left(self, history: History, disk: DiskReading) -> Gauge:
        left_s = self._left_s(history, disk)
        return Gauge(
            what=f"time until {disk.path} is full",
            unit="s",
            now=left_s,
            limit=self.warn_left_s,
            below=True,
            not_watched="it does not fill, as far as is known" if left_s is None else None,
            observe=partial(self._observe_disk, history, disk),
        )

    def find_warn_bytes(self, disk: DiskReading) -> float:
        """Return the free bytes below which a disk of that size is a warning."""
        return max(self.warn_bytes, disk.total_bytes * self.warn_fraction)

    def _observe_disk(self, history: History, disk: DiskReading) -> Observation:
        left_s = self._left_s(history, disk)
        filling = "" if left_s is None else f", full in {left_s / HOUR_S:.1f} h at this rate"
        return Observation(
            message=f"{disk.path}: {disk.free_bytes / GB:.2f} of {disk.total_bytes / GB:.2f} GB are free{filling}",
            subject=disk.path,
            diagnosis=FULL,
        )


def _observe_inodes(disk: DiskReading) -> Observation:
    return Observation(
        message=f"{disk.path}: {disk.free_inodes} of {disk.total_inodes} inodes are free, one for each file or folder",
        subject=disk.path,
        diagnosis=MANY_FILES,
    )


def _find_newest(history: History) -> HostReading | None:
    return newest_of(history.host, lambda reading: bool(reading.disks), history.now)


FULL = Diagnosis(
    causes=(
        "checkpoints of every epoch are kept [ultralytics docs, save_period]",
        "caches of data sets, logs or core dumps on the same disk",
    ),
    advice=(
        "du -xh --max-depth=2 on that path names the largest; fewer kept checkpoints, another disk for runs",
        "nothing is saved on a full disk: a checkpoint written into it is a destroyed one",
    ),
)
MANY_FILES = Diagnosis(
    causes=(
        "very many small files: a data set of single images, caches, environments",
        "logs of which none is removed",
    ),
    advice=(
        "`df -i` on that path shows its inodes, `du -x --inodes --max-depth=2` names the folders with most files",
        "remove or pack them, or move runs to another disk: no checkpoint can be made without an inode",
    ),
)
