"""A disk that refuses single changes: the file system of `tests/rigs/hanging_fs.py`, counting what is asked of it."""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.rigs import hanging_fs as fs
from tests.rigs.hanging_fs import HangingFs, mounted

FSYNCDIR, FALLOCATE = 30, 43
OF_A_FILE = {
    fs.WRITE: "write",
    fs.FSYNC: "fsync",
    fs.SETATTR: "set",
    FSYNCDIR: "fsync",
    FALLOCATE: "allocate",
}
OF_A_NAME = {
    fs.CREATE: ("create", 16),
    fs.MKDIR: ("mkdir", 8),
    fs.UNLINK: ("unlink", 0),
    fs.RMDIR: ("rmdir", 0),
    fs.SYMLINK: ("symlink", 0),
    fs.LINK: ("link", 8),
    fs.RENAME: ("rename", 8),
    fs.RENAME2: ("rename", 16),
}
"""Requests that change something: their names for people, and where in the request the name in the folder begins."""
SET = struct.Struct("<I12xQQQQQIIII")
MODE, SIZE, READ_AT, WRITTEN_AT = 1, 8, 16, 32
"""What SETATTR sets; the kernel sends the present time where that is asked for."""


@dataclass(slots=True)
class _Fails:
    """Which changes of a kind fail, and how many of that kind there were."""

    numbers: range
    error: int
    counted: int = 0


class FailingDisk(HangingFs):
    """The server of one mount; it keeps times and modes too, which generations are known by."""

    def __init__(self, real: Path, at: Path) -> None:
        self.changes: list[str] = []
        """What was changed on it, or was to be, first first; in the folders of trainings only what is to fail."""
        self.failed_changes: list[str] = []
        """Those of them that failed by `fails_at`."""
        self._fails: dict[str, _Fails] = {}
        super().__init__(real, at)

    def fails_at(self, kind: str, number: int, error: int, *, times: int = 1) -> None:
        """Answer the `number`-th change of a kind from here on, counted from 1, and the `times - 1` after it with this.

        `kind` is as `kind_of` gives it; a second call with another kind lets both fail.
        """
        self._fails[kind] = _Fails(range(number, number + times), error)

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._fails = {}

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        self._count_change(opcode, node, body)
        if opcode == FSYNCDIR:
            return b""
        if opcode == FALLOCATE:
            handle, offset, size, mode = struct.unpack_from("<QQQI", body)
            if mode != 0:
                raise OSError(errno.EOPNOTSUPP, "not served")
            os.posix_fallocate(self._files[handle], offset, size)
            return b""
        return super()._answer(opcode, node, body)

    def _count_change(self, opcode: int, node: int, body: bytes) -> None:
        """Count a request that changes something; raises OSError where its turn to fail has come."""
        path = self._paths.get(node, self.real)
        if opcode in OF_A_NAME:
            kind, begin = OF_A_NAME[opcode]
            path /= os.fsdecode(body[begin:].partition(b"\0")[0])
        elif opcode in OF_A_FILE:
            kind = OF_A_FILE[opcode]
        else:
            return
        name = path.relative_to(self.real)
        change = f"{kind} {name}"
        fails = self._fails.get(kind_of(change))
        if "run" in name.parts[:-1] and fails is None:
            return
        self.changes.append(change)
        if fails is None:
            return
        fails.counted += 1
        if fails.counted in fails.numbers:
            self.failed_changes.append(change)
            raise OSError(fails.error, os.strerror(fails.error))

    def _set(self, path: Path, body: bytes) -> bytes:
        valid, _, _, read_s, written_s, _, read_ns, written_ns, _, mode = SET.unpack_from(body)
        if valid & MODE:
            path.chmod(stat.S_IMODE(mode))
        answer = super()._set(path, body)
        if not valid & (READ_AT | WRITTEN_AT):
            return answer
        found = path.stat()
        read_at = read_s * 10**9 + read_ns if valid & READ_AT else found.st_atime_ns
        os.utime(path, ns=(read_at, written_s * 10**9 + written_ns if valid & WRITTEN_AT else found.st_mtime_ns))
        return super()._set(path, body)


def kind_of(change: str) -> str:
    """Return a change without the numbers that tell it from others of its kind."""
    return re.sub(r"[0-9a-f]{12,}|\d+", "N", change)


def failing(at: Path, real: Path) -> AbstractContextManager[FailingDisk]:
    """Mount one over two folders that are made for it; skips the test where it may not."""
    return mounted(FailingDisk, at, real)
