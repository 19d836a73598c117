"""Prunes checkpoints from the record that no longer exist as files and that nothing in the history refers to.

A training that saves each minute adds some thousand rows a day. A row is of use as long as its content exists (its
verdict holds for it), as long as an attempt was resumed from it, or as the last that is known of a path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from supervisor.children.files_apart import apart
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.runner.folder_checkpoints import fingerprint_of

CHECKED_AT_ONCE = 1000
"""Rows that one call looks at, each with one or two `stat` calls."""


class OldCheckpoints(Protocol):
    """The record as it is read here."""

    def old_checkpoints(
        self, job: str, before_unix_s: float, *, offset: int, limit: int
    ) -> tuple[tuple[Checkpoint, bool], ...]:
        """Return what no attempt was resumed from, the first seen first, each with whether its path has a newer row."""
        ...


class RecordPruner:
    """Called in threads that may block; `forget` has rows deleted in the thread that writes the record."""

    def __init__(self, record: OldCheckpoints, forget: Callable[[str, tuple[Checkpoint, ...]], None]) -> None:
        self._record = record
        self._forget = forget
        self._offsets: dict[str, int] = {}
        """By job: how many of its old rows are to stay; the next call looks at those after them."""

    def prune(self, job: str, before_unix_s: float) -> None:
        """Delete rows that were first seen before a time and whose content no longer exists. Raises ArchiveError."""
        offset = self._offsets.get(job, 0)
        found = self._record.old_checkpoints(job, before_unix_s, offset=offset, limit=CHECKED_AT_ONCE)
        gone = apart(find_gone, found)
        self._offsets[job] = offset + len(found) - len(gone) if len(found) == CHECKED_AT_ONCE else 0
        if gone:
            self._forget(job, gone)


def find_gone(found: tuple[tuple[Checkpoint, bool], ...]) -> tuple[Checkpoint, ...]:
    """Return those whose content no longer exists; each comes with whether its path has a newer row."""
    return tuple(checkpoint for checkpoint, has_newer in found if is_gone(checkpoint, has_newer=has_newer))


def is_gone(checkpoint: Checkpoint, *, has_newer: bool) -> bool:
    """Whether the content of a checkpoint exists neither at its path nor, for a generation, at its source.

    A path that cannot be read is not gone. An overwritten path keeps its newest row, and so does a path whose
    folder is missing: its file system may not be mounted. Generations are in the daemon's own folder.
    """
    path, known = Path(checkpoint.path), checkpoint.fingerprint
    try:
        present = _fingerprint_now(path)
        if present is not None and (_is_same(present, known) or not has_newer):
            return False
        if checkpoint.source is None:
            return has_newer or path.parent.is_dir()
        source = _fingerprint_now(Path(checkpoint.source))
    except OSError:
        return False
    return source is None or not _is_same(source, known)


def _is_same(present: Fingerprint, known: Fingerprint) -> bool:
    return (present.size_bytes, present.modified_ns) == (known.size_bytes, known.modified_ns)


def _fingerprint_now(path: Path) -> Fingerprint | None:
    """Return the `stat` values at a path, None where nothing exists; raise OSError where that cannot be found out."""
    try:
        return fingerprint_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
