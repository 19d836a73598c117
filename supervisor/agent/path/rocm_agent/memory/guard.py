"""Ends a probe that is about to write over a file, where its writes cannot be discarded as a whole."""

from __future__ import annotations

import os
import stat
import sys
import time
from typing import Any, Callable, Tuple

WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
EVENTS = {"open": 0, "os.remove": 0, "os.truncate": 0, "os.rename": 1}
"""What writes to a path, and which argument of its audit event names it."""
HARMLESS = ("/dev/", "/proc/", "/sys/", "/run/")


def begin(refuse: Callable[[str], None], own_folder: str) -> None:
    """Call `refuse` with the path before a file that was there at the start is written, renamed over or removed."""
    started = time.time()  # noqa: TID251 - compared with the times of files
    allowed = (*HARMLESS, own_folder + "/", os.path.expanduser("~/.cache") + "/")

    def is_theirs(path: Any) -> bool:
        try:
            name = os.path.realpath(os.fsdecode(path))
            found = os.stat(name)
        except (OSError, TypeError, ValueError):
            return False
        older = found.st_ctime < started and found.st_size > 0
        return stat.S_ISREG(found.st_mode) and older and not name.startswith(allowed)

    def audit(event: str, args: Tuple[Any, ...]) -> None:
        target = args[EVENTS[event]] if event in EVENTS else None
        if event == "open" and (isinstance(target, int) or not isinstance(args[2], int) or not args[2] & WRITES):
            return
        if target is not None and is_theirs(target):
            refuse(os.fsdecode(target))

    sys.addaudithook(audit)
