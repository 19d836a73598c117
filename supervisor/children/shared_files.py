"""Writes files that appear whole or not at all, and looks at many; `apart`, where a file system may hang."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

PIECE_BYTES = 1 << 20


def replace_file(path: Path, content: bytes, mode: int, *, sync: bool = False) -> None:
    """Write a draft next to a file and rename it; no link of that name is followed. Raises OSError.

    `sync`: the content is on the disk before the name is its.
    """
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    draft.replace(path)


def replace_configured_file(path: Path, content: bytes, mode: int) -> None:
    """As `replace_file`, of a path that a person wrote: a device or a pipe there keeps its name. Raises OSError."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        kind = stat.S_IFREG
    if kind not in (stat.S_IFREG, stat.S_IFLNK):
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    replace_file(path, content, mode)


def append_lines(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    """Append objects, each a line, or nothing where the disk is full. Raises OSError."""
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data  # a leader was killed within its line
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(file, data[done:], size + done)
            os.fsync(file)
        except OSError as error:
            os.ftruncate(file, size)
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(file)


def make_folder(path: Path, mode: int) -> None:
    """Make a folder and its parents where they are missing. Raises OSError."""
    path.mkdir(mode=mode, parents=True, exist_ok=True)


def copy_over(source: Path, target: Path) -> None:
    """Replace a file by a copy of another. Raises OSError."""
    draft = target.with_name(f".{target.name}.draft")
    with source.open("rb") as file, draft.open("wb") as copied:
        while piece := file.read(PIECE_BYTES):
            copied.write(piece)
    draft.replace(target)


def stat_each(paths: Sequence[Path]) -> list[os.stat_result | OSError]:
    """Return the status of each file, or why there is none."""
    found: list[os.stat_result | OSError] = []
    for path in paths:
        try:
            found.append(path.stat())
        except OSError as error:
            found.append(error)
    return found
