"""The places of the daemon's own files and folders: what is of another kind there is renamed, and never removed.

By a folder, a pipe or a link in such a place nothing would start or be launched, and it may hold what is needed.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

ASIDE_LIMIT = 100


def make_way(path: Path, is_right: Callable[[int], bool] = stat.S_ISREG) -> None:
    """Rename what is in the place of something of the daemon's, unless it is `is_right` by its mode.

    Raises OSError where it cannot be renamed, as a mount cannot.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not is_right(mode):
        move_aside(path)


def move_aside(path: Path) -> None:
    """Rename what is in the place of something of the daemon's to `NAME.found-NUMBER`. Raises OSError."""
    for number in range(1, ASIDE_LIMIT):
        aside = path.with_name(f"{path.name}.found-{number}")
        if not os.path.lexists(aside):
            path.rename(aside)
            log.error("place.not_ours", extra={"fields": {"place": str(path), "moved_to": str(aside)}})
            return
    raise FileExistsError(f"{path}: not created by the daemon, and no free name is left to move it to; remove it")
