"""Has the C library keep one heap for all threads.

Threads come and go with every attempt. glibc gives each one of several heaps, and a heap keeps what its threads once
took: over many restarts the memory of the daemon would grow by what is free in heaps that nobody uses.
"""

from __future__ import annotations

import ctypes
import os

M_ARENA_MAX = -8
"""From glibc's malloc.h."""


def keep_one_heap() -> bool:
    """Have every thread from now on take its memory from the first heap; return whether the C library can be told."""
    if not _is_glibc():
        return False
    return bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1))


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):
        return False
