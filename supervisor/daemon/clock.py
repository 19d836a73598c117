"""The one place where clocks are read; it knows nothing of what the time is used for."""

from __future__ import annotations

import time
from pathlib import Path

from supervisor.core.moments import Moment

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemClock:
    """CLOCK_MONOTONIC and the wall clock of this machine."""

    def now(self) -> Moment:
        """Return the present moment on both clocks."""
        return Moment(time.monotonic(), time.time())  # noqa: TID251 - this is the place the ban points to

    def wall_offset_s(self) -> float:
        """Return wall minus monotonic time: it changes only when somebody sets the clock."""
        return time.time() - time.monotonic()  # noqa: TID251 - this is the place the ban points to


def boot_id() -> str:
    """Return the kernel's name for the present boot: monotonic times of another boot mean nothing."""
    return BOOT_ID.read_text().strip()
