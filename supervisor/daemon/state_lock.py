"""One daemon a state directory: whoever holds the lock; a killed one leaves none behind."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

NAME = "daemon.lock"


class StateLockedError(RuntimeError):
    """Another daemon works on this state."""


def lock_state(state: Path) -> int:
    """Lock the state directory for this process; return the descriptor that holds the lock.

    Raises StateLockedError naming the process that has it, OSError where the directory cannot be written.
    """
    descriptor = os.open(state / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StateLockedError(
            f"{state} is in use by another rocm-supervisord (pid {holder}); stop that one, or set supervisor.state_dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
