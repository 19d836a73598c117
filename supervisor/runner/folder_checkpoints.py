"""Checkpoints that are folders: their fingerprint and the files in them, which are not opened.

accelerate, DeepSpeed, orbax and torch.distributed.checkpoint save folders. A folder with a link is refused: the link's
target may change after the capture, or belong to another user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from supervisor.core.checkpoints.checkpoint import Fingerprint

CAN_BE_PROVEN = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
"""Files written by torch.save or safetensors."""
HOLDS_WEIGHTS = (*CAN_BE_PROVEN, ".distcp")
MAY_BE_ANYTHING = ".pkl"
"""Files that torch.save or pickle wrote: accelerate's random states and what a script registers with it."""
FILES_AT_MOST = 20_000
DEPTH_AT_MOST = 16


class TreeError(OSError):
    """A folder that cannot be one checkpoint."""


def fingerprint_of(path: Path) -> Fingerprint:
    """Return the fingerprint of a file's or folder's content. Raises OSError if there is neither.

    That of a folder has the size of all its files, the time of the newest that may hold weights, or of the newest where
    none may, and the folder's inode. What an evaluation writes into it later makes it no later save.
    """
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        return Fingerprint(size_bytes=found.st_size, modified_ns=found.st_mtime_ns, inode=found.st_ino)
    stats = {item: item.lstat() for item in files_in(path)}
    timed = [info for item, info in stats.items() if item.name.endswith(HOLDS_WEIGHTS)] or stats.values()
    return Fingerprint(
        size_bytes=sum(info.st_size for info in stats.values()),
        modified_ns=max((info.st_mtime_ns for info in timed), default=found.st_mtime_ns),
        inode=found.st_ino,
    )


def describe_refused(path: Path) -> tuple[Fingerprint, str] | None:
    """Return why a folder of weights is not taken as a checkpoint, with what it is known by; None for any other path.

    It is there, and what is in it cannot be kept or proven: `params` in that of Sockeye is a link to a file next to it.
    """
    try:
        fingerprint_of(path)
    except TreeError as error:
        found = path.stat()
        with os.scandir(path) as entries:
            holds_weights = any(entry.name.endswith((*HOLDS_WEIGHTS, MAY_BE_ANYTHING)) for entry in entries)
        known_by = Fingerprint(size_bytes=0, modified_ns=found.st_mtime_ns, inode=found.st_ino)
        return (known_by, str(error)) if holds_weights else None
    except OSError:
        return None
    return None


def files_in(folder: Path) -> tuple[Path, ...]:
    """Return every file below a folder, sorted by name. Raises TreeError if it contains anything else."""
    found: list[Path] = []
    for path in _walk_files(folder, DEPTH_AT_MOST):
        found.append(path)
        if len(found) > FILES_AT_MOST:
            raise TreeError(f"{folder} holds more than {FILES_AT_MOST} files")
    return tuple(sorted(found))


def _walk_files(folder: Path, depth: int) -> Iterator[Path]:
    if depth == 0:
        raise TreeError(f"{folder} contains more than {DEPTH_AT_MOST} levels of folders")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk_files(Path(entry.path), depth - 1)
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            else:
                raise TreeError(
                    f"{entry.path} is a link or a special file: a checkpoint folder may contain only regular files"
                )
