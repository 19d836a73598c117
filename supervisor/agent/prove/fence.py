"""Drops, in the process that proves, all rights that reading an open file does not need."""

from __future__ import annotations

import os
import resource
from typing import Any

LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446
"""Numbers of the system calls, the same on every architecture (Linux 5.13)."""
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SIGKILL = 9


def confine(memory_limit_bytes: int, cpu_limit_s: int) -> None:
    """Give away all that reading an open file does not need; each fence holds where the others cannot be had.

    No file and no socket can be opened (RLIMIT_NOFILE, Landlock), no process starts, memory and processor time end.
    Where the kernel allows it the process also leaves its user and its network behind.
    """
    "".encode("cp437")  # zipfile's, for names that are not ASCII; what is imported later could not be opened
    try:
        import ctypes  # noqa: PLC0415 - where memory may not be made executable, some builds cannot be imported

        leave(ctypes.CDLL(None, use_errno=True), ctypes.c_uint64)
    except (ImportError, MemoryError, OSError, AttributeError):
        pass  # the limits below hold everywhere
    for limit, value in (
        (resource.RLIMIT_AS, memory_limit_bytes),
        (resource.RLIMIT_CPU, cpu_limit_s),
    ):
        if value:
            lower(limit, value)
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))


def lower(limit: int, value: int) -> None:
    """Set a limit of this process, or leave it where it is lower already: it may not be raised."""
    _, most = resource.getrlimit(limit)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))


def leave(libc: Any, word: Any) -> None:
    """Leave user, network and file system behind, as far as the kernel and a sandbox around us let us."""
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        libc.unshare(CLONE_NEWNET)
    handled = (word * 1)((1 << 13) - 1)  # every right to files that Landlock's first version knows, none given
    ruleset = libc.syscall(LANDLOCK_CREATE, handled, 8, 0)
    if ruleset >= 0:
        libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)
