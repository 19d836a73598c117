"""Whether a process is only what SIGKILL has left of it: threads that wait in the kernel, or for a processor.

Such a thread runs no instruction of its program any more. Until it ends it keeps the files of its process open: locks
stay held, and sockets listen. On a hung disk that lasts until the disk answers, on a busy machine for seconds.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat: the thread is on its way out (linux/sched.h)."""
_STATE, _FLAGS, _SIGNALS_PENDING = 0, 6, 28
"""Fields of /proc/PID/stat, counted from behind the name; the signals are those of the thread itself."""


def was_killed(pid: int) -> bool:
    """Return whether all that is left of a process are threads that have been killed; False where it is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[_STATE] in ("Z", "X"):
            return len(os.listdir(f"/proc/{pid}/task")) > 1  # noqa: PTH208 - names alone
        is_killed = int(fields[_SIGNALS_PENDING]) >> (signal.SIGKILL - 1) & 1  # the kernel gives it to each thread
        return bool(is_killed or int(fields[_FLAGS]) & PF_EXITING)
    except (OSError, IndexError, ValueError):
        return False
