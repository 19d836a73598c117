"""A lock file that lets one process at a time use another file, with a bounded wait."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from time import monotonic_ns, sleep
from typing import Iterator

WAIT_S = 5.0


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold PATH.lock for the block; raise OSError where it cannot be had within WAIT_S."""
    file = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = monotonic_ns() + int(WAIT_S * 1e9)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic_ns() > deadline:
                    raise
                sleep(0.01)
        yield
    finally:
        os.close(file)
