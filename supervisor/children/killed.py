"""Whether a process is only what SIGKILL has left of it: threads that wait in the kernel, on a disk that hangs.

Such a thread runs no instruction of its program any more. Until it ends it keeps the files of its process open: locks
stay held, and sockets listen.
"""

from __future__ import annotations

import os
from pathlib import Path


def was_killed(pid: int) -> bool:
    """Return whether all that is left of a process are threads that have been killed; False where it is not known."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state in ("Z", "X") and len(os.listdir(f"/proc/{pid}/task")) > 1  # noqa: PTH208 - names alone
    except (OSError, IndexError):
        return False
