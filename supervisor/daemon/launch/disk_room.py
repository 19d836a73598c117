"""Whether the disks of a job have the room that a launch needs: on a full one every later checkpoint would fail."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.config.derive import rules_of
from supervisor.config.settings import JobSettings, Settings
from supervisor.core.readings import DiskReading
from supervisor.core.rules.disk_low import DiskLow
from supervisor.daemon.job_state import JobState
from supervisor.daemon.telemetry import NewestReadings

NO_LIMITS = (0, 0)


class DiskRoom:
    """Asked in every turn of every job, in the deciding thread."""

    def __init__(self, settings: Callable[[], Settings], newest: NewestReadings) -> None:
        """`settings` returns those in force: a reload puts others in their place, and changes none of them."""
        self._settings, self._newest = settings, newest
        self._limits_of: Settings | None = None
        self._limits: dict[str, tuple[int, int]] = {}

    def may_launch(self, job_state: JobState) -> bool:
        """Whether a launch is allowed, and note why not."""
        disk = self.find_full(job_state)
        job_state.held = None if disk is None else f"{disk.path}: {disk.room_words}, too little for a launch"
        return disk is None

    def find_full(self, job_state: JobState) -> DiskReading | None:
        """Return a disk of the job with too little room for a launch by its own limits."""
        host, settings = self._newest.host, self._settings()
        if host is None:
            return None
        if self._limits_of is not settings:
            self._limits_of = settings
            self._limits = {name: _limits_of(job) for name, job in settings.jobs.items()}
        limit_bytes, limit_inodes = self._limits.get(job_state.job.name, NO_LIMITS)
        own = (disk for disk in host.disks if job_state.disks is None or disk.path in job_state.disks)
        return next((disk for disk in own if disk.free_bytes < limit_bytes or disk.has_few_inodes(limit_inodes)), None)


def _limits_of(settings: JobSettings) -> tuple[int, int]:
    """Return the bytes and the inodes below which the job's rule acts."""
    rule = next((item for item in rules_of(settings) if isinstance(item, DiskLow)), None)
    return (rule.limit_bytes, rule.limit_inodes) if rule is not None and rule.enabled and rule.act else NO_LIMITS
