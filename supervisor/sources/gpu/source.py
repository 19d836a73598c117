"""The protocol of a source of GPU readings; `gpus.py` isolates and schedules sources."""

from __future__ import annotations

from typing import Protocol

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading


class SourceSilentError(Exception):
    """A source has nothing to say, and why: not installed, no card, no permission."""


class GpuSource(Protocol):
    """One way to read the cards. It is asked by one thread of its own, so it may block, and it may raise anything."""

    @property
    def name(self) -> str:
        """The name that settings and readings carry."""

    @property
    def vendor(self) -> str:
        """Whose cards it reads (`amd`, `nvidia`): sources stand in for each other only where it is the same."""

    @property
    def interval_s(self) -> float:
        """Least time between two readings, 0 for every round."""

    @property
    def deadline_s(self) -> float:
        """After this long a reading counts as failed."""

    @property
    def wait_s(self) -> float:
        """How long a round waits for this source; what comes later is taken in a later round."""

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return one reading for each card that it sees, stamped `now`."""

    def close(self) -> None:
        """Let go of whatever it holds."""
