"""Finds a training's output where a log rotation has renamed or copied it: next to its path, with more to its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".Z")
TAIL_FILES = 4
"""Rotated files that an end of the output is read from, at most."""


def list_rotated(attempt: Path) -> Iterator[str]:
    """Yield the names below the attempt's folder that a log rotation gives to its output."""
    folder, _, leaf = attempt_files.OUTPUT.rpartition("/")
    for name in untrusted_files.list_names(attempt, folder).names:
        if name.startswith(leaf) and name != leaf and not name.endswith(COMPRESSED):
            yield f"{folder}/{name}"


def find_rotated(attempt: Path, limit: int) -> list[tuple[str, int]]:
    """Return (name, size in bytes) of at most `limit` rotated files of the output, the last written one first."""
    return [(name, status.st_size) for name, status in _find_written(attempt, list_rotated(attempt))[:limit]]


def find_written(attempt: Path) -> str:
    """Return the name of the file of the output that was written to last: a renamed one is still the training's."""
    names = (attempt_files.OUTPUT, *list_rotated(attempt))
    return next((name for name, status in _find_written(attempt, names) if status.st_size), attempt_files.OUTPUT)


def read_output_end(attempt: Path, limit_bytes: int) -> bytes:
    """Return the last bytes of the output, over the files of its newest rotations. Raises OSError without any."""
    names = (attempt_files.OUTPUT, *list_rotated(attempt))
    found = _find_written(attempt, names)[: TAIL_FILES + 1]
    if not found:
        return untrusted_files.read_tail(attempt, attempt_files.OUTPUT, limit_bytes).content
    end = b""
    for name, _ in found:
        if len(end) < limit_bytes:
            end = untrusted_files.read_tail(attempt, name, limit_bytes - len(end)).content + end
    return end


def status_of(attempt: Path, name: str) -> os.stat_result | None:
    """Return the status of a regular file; None where there is none."""
    try:
        return untrusted_files.file_status(attempt, name)
    except untrusted_files.UntrustedFileError:
        return None


def _find_written(attempt: Path, names: Iterator[str] | tuple[str, ...]) -> list[tuple[str, os.stat_result]]:
    """Return those of the files that are there, the last written one first."""
    statuses = ((name, status_of(attempt, name)) for name in names)
    found = [(name, status) for name, status in statuses if status is not None]
    return sorted(found, key=lambda item: item[1].st_mtime_ns, reverse=True)
