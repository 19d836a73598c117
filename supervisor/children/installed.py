"""Whether the package has been replaced since this process began: what is imported or started then is another version.

An installer that writes a file gives it another node or another time; of many files it writes, one is looked at.
"""

from __future__ import annotations

from pathlib import Path

import supervisor
from supervisor.children.file_server import identify

ROOT = str(Path(supervisor.__file__).resolve().parents[1])
"""The directory that holds the package."""
MARK = "supervisor/__init__.py"


AT_START = identify(f"{ROOT}/{MARK}")


def was_replaced() -> bool:
    """Whether another version is installed by now, or none is."""
    return identify(f"{ROOT}/{MARK}") != AT_START
