"""Runs a program to which the kernel refuses a file table for a single thread, as the filters of containers do.

python refused_calls.py PROGRAM ARGUMENT...
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
REFUSED, ALLOWED = 0x00050000 | 1, 0x7FFF0000
"""SECCOMP_RET_ERRNO with EPERM, SECCOMP_RET_ALLOW."""
UNSHARE = {"x86_64": 272, "aarch64": 97}
CLOSE_RANGE = 436
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
INSTRUCTION = struct.Struct("HBBI")


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def refuse() -> None:
    """Refuse unshare(2) and close_range(2) to this process and all that it starts."""
    steps = [
        (LOAD, 0, 0, 0),
        (JUMP_IF_EQUAL, 2, 0, UNSHARE[platform.machine()]),
        (JUMP_IF_EQUAL, 1, 0, CLOSE_RANGE),
        (RETURN, 0, 0, ALLOWED),
        (RETURN, 0, 0, REFUSED),
    ]
    program = b"".join(INSTRUCTION.pack(*step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    asked = _Filter(len(steps), program)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(asked)):
        raise OSError(ctypes.get_errno(), "no filter of system calls here")


if __name__ == "__main__":
    refuse()
    os.execv(sys.argv[1], sys.argv[1:])
