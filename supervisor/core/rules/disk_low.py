"""Disk low: no room for the next checkpoint. It stops before a save fails halfway, and frees nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import DiskReading
from supervisor.core.series import FRESH_S, newest_of
from supervisor.core.watched import Watched


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLow:
    """Free space below `warn_bytes`, or below `warn_fraction` of the disk, is told; below `limit_bytes` acts.

    Nothing is saved before such a stop: a checkpoint written into a full disk is a destroyed one.
    """

    name: ClassVar[str] = "disk_low"
    enabled: bool = True
    act: Act = True
    warn_bytes: int = 2_000_000_000
    warn_fraction: float = 0.02
    limit_bytes: int = 200_000_000

    def check(self, history: History) -> RedFlag | None:
        """Flag the fullest of the disks that the newest reading of disks names."""
        newest = next((one for one in reversed(history.host) if one.disks), None)
        if history.over or newest is None or history.now.seconds_since(newest.at) > FRESH_S:
            return None
        for disk in sorted(newest.disks, key=lambda one: one.free_bytes):
            if disk.free_bytes < self.limit_bytes:
                return self._flag(history, disk, Severity.acting(act=self.act))
            if disk.free_bytes < self.warn_bytes or disk.free_bytes < disk.total_bytes * self.warn_fraction:
                return self._flag(history, disk, Severity.WARNING)
        return None

    def watch(self, history: History) -> Watched | None:
        """Return how much is free on the fullest of the disks."""
        newest = newest_of(history.host, lambda one: bool(one.disks), history.now)
        if newest is None or history.over:
            return Watched(rule=self.name, what="space on its disks", not_watched="no reading of its disks")
        disk = min(newest.disks, key=lambda one: one.free_bytes)
        return Watched(
            rule=self.name,
            what=f"space left on {disk.path}",
            unit="bytes",
            now=disk.free_bytes,
            limit=self.limit_bytes,
            below=True,
        )

    def _flag(self, history: History, disk: DiskReading, severity: Severity) -> RedFlag:
        return RedFlag(
            rule=self.name,
            severity=severity,
            at=history.now,
            message=f"{disk.path}: {disk.free_bytes / 1e9:.2f} of {disk.total_bytes / 1e9:.2f} GB are free",
            subject=disk.path,
        )
