"""Whether the package has been replaced since this process began: what is imported or started then is another version.

An installer that writes a file gives it another node or another time; of many files it writes, one is looked at.
"""

from __future__ import annotations

import os
from pathlib import Path

import supervisor

ROOT = str(Path(supervisor.__file__).resolve().parents[1])
"""The directory that holds the package."""
MARK = "supervisor/__init__.py"


def identify() -> str | None:
    """Return what changes when the package is replaced; None where it is not there, as for a moment of an upgrade."""
    try:
        found = os.stat(f"{ROOT}/{MARK}")  # noqa: PTH116 - as the process that works on files does it
    except OSError:
        return None
    return f"{found.st_dev} {found.st_ino} {found.st_mtime_ns}"


AT_START = identify()


def was_replaced() -> bool:
    """Whether another version is installed by now, or none is."""
    return identify() != AT_START
