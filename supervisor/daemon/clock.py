"""The system clock of the daemon, and the interface through which its parts read the time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from supervisor.core.moments import Moment

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> Moment:
        """Return the current moment."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC and the wall clock of this machine."""

    def now(self) -> Moment:
        """Return the current moment on both clocks."""
        return Moment(time.monotonic(), time.time())  # noqa: TID251 - this is the place the ban points to


def boot_id() -> str:
    """Return the kernel's id of the current boot; monotonic times of different boots cannot be compared."""
    return BOOT_ID.read_text().strip()
