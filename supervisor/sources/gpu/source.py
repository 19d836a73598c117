"""The protocol of a source of GPU readings; `gpus.py` isolates and schedules sources."""

from __future__ import annotations

from typing import Protocol

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading


class SourceSilentError(Exception):
    """A source has no reading; the message says why: not installed, no GPU, no permission."""


class GpuSource(Protocol):
    """One way to read GPUs. It is called in its own thread, so it may block, and it may raise any exception."""

    @property
    def name(self) -> str:
        """The name used in settings and readings."""

    @property
    def vendor(self) -> str:
        """Vendor of its GPUs (`amd`, `nvidia`); only sources of the same vendor replace each other."""

    @property
    def interval_s(self) -> float:
        """Minimum time between two readings; 0 to read in every round."""

    @property
    def deadline_s(self) -> float:
        """Time after which a reading counts as failed."""

    @property
    def wait_s(self) -> float:
        """How long a round waits for this source; a later answer is used in a later round."""

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return one reading for each GPU, with the time `now`."""

    def close(self) -> None:
        """Release all resources."""
