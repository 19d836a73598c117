"""A process with no room for another thread: the system refuses the stack that each would get."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

BEYOND_ALL_MEMORY = 1 << 47
"""The addresses of a process end there."""


@contextmanager
def no_threads() -> Iterator[None]:
    """Have the system refuse each thread that is started in this context."""
    before = threading.stack_size(BEYOND_ALL_MEMORY)
    try:
        yield
    finally:
        threading.stack_size(before)
