"""What the record does not hold, taken from the configuration: for who reads the record without the daemon."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from supervisor.alerts.settings import explain_zone
from supervisor.config import Settings
from supervisor.control.alerts import ReceiverState
from supervisor.core.job import Job
from supervisor.store.archive import Archive


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredFacts:
    """Implements `control.record_view.Facts` from the configuration, and the jobs' state from the record."""

    unreadable_hint: ClassVar[str] = (
        "start the daemon, which serves it, or read it as the daemon's user: sudo -u rocm-supervisor"
    )

    settings: Settings
    archive: Archive
    now: Callable[[], float]

    def now_unix_s(self) -> float:
        """Return the time, in Unix seconds."""
        return self.now()

    def job_names(self) -> Collection[str]:
        """Return the names of the configured jobs."""
        return self.settings.jobs.keys()

    def jobs(self) -> Sequence[Job]:
        """Return the configured jobs as last recorded."""
        return [job for job in self.archive.jobs() if job.name in self.settings.jobs]

    def receivers(self) -> Mapping[str, ReceiverState]:
        """Return the configured receivers; whether their address can be read, only the daemon can check."""
        return {
            name: ReceiverState(
                kind=receiver.kind, min_severity=receiver.min_severity, warning=explain_zone(name, receiver)
            )
            for name, receiver in self.settings.alerts.items()
        }
