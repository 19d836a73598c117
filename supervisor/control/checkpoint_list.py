"""The checkpoints of a job as the API lists them, from the database and from the files that still exist."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from supervisor.children.files_apart import apart_within
from supervisor.children.shared_files import stat_each
from supervisor.control import record_types
from supervisor.control.present import checkpoint_entry
from supervisor.core.checkpoints.checkpoint import Checkpoint, drop_captured_files

_ABSENT = (FileNotFoundError, NotADirectoryError)
LOOK_LIMIT_S = 1.0
"""For all of them: a file system that hangs keeps a request from its answer, and its thread from the next request."""


def listed(recorded: Iterable[Checkpoint], limit_s: float = LOOK_LIMIT_S) -> list[record_types.CheckpointEntry]:
    """Return each recorded checkpoint once; snapshots (one every few minutes) unless they are known to be gone.

    `limit_s` is how long it may take to find that out.
    """
    checkpoints = list(drop_captured_files(recorded))
    gone = _find_gone([checkpoint.path for checkpoint in checkpoints if checkpoint.kind == "snapshot"], limit_s)
    return [checkpoint_entry(checkpoint) for checkpoint in checkpoints if checkpoint.path not in gone]


def _find_gone(paths: Iterable[str], limit_s: float) -> frozenset[str]:
    """Return which of some files do not exist; none where that cannot be found out in time."""
    asked = tuple(map(Path, paths))
    if not asked:
        return frozenset()
    try:
        found = apart_within(limit_s, stat_each, asked)
    except (OSError, RuntimeError):
        return frozenset()
    return frozenset(str(path) for path, status in zip(asked, found, strict=True) if isinstance(status, _ABSENT))
