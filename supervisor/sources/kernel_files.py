"""Reads small text files of /proc and /sys with as few system calls as possible."""

from __future__ import annotations

import os
from pathlib import Path

_BYTES_MAX = 65536


def read_text(path: str | Path) -> str:
    """Return the text of a file without surrounding white space and NULs, "" if it cannot be read.

    Opened by name at each call, so a file of a removed device is not read through an old descriptor. At most 64 KiB
    are read in one call: the kernel renders these files in one piece.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, _BYTES_MAX).decode("utf-8", "backslashreplace").strip("\r\n\t \x00")
    except OSError:
        return ""
    finally:
        os.close(fd)
