"""Limits the disk usage of a training's output: truncates the folded text and punches holes into the raw file."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import IO

from supervisor import untrusted_files
from supervisor.core import attempt_files

_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_BLOCK_BYTES = 4096
_COPY_BYTES = 1 << 20
_LONGEST_MARK_BYTES = 40
_LEFT_OUT = re.compile(rb"^\[(\d{1,18}) bytes left out\]\n", re.MULTILINE)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class FoldedText:
    """`output.txt`: grows to `limit_bytes`, then its middle is removed.

    The head shows versions, settings and data set, the tail the latest output. Half of the limit is kept for the head
    and a quarter for the tail; a line between them gives the number of bytes removed.
    """

    def __init__(self, attempt: Path, limit_bytes: int) -> None:
        self._attempt = attempt
        self._limit_bytes = max(limit_bytes, 4096)
        self._head_bytes = self._limit_bytes // 2

    def append(self, text: str) -> None:
        """Append the text. Raises OSError (disk full, folder removed, not a regular file)."""
        with self._open_file(attempt_files.FOLDED, "ab", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            size = file.tell()
        if size > self._limit_bytes:
            self._drop_middle(size)

    def _open_file(self, name: str, mode: str, flags: int) -> IO[bytes]:
        return os.fdopen(untrusted_files.open_file(self._attempt, name, flags, only_name=True, mode=0o640), mode)

    def _drop_middle(self, size: int) -> None:
        fresh = f"{attempt_files.FOLDED}.new"
        untrusted_files.remove(self._attempt, fresh)
        written = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with (
            self._open_file(attempt_files.FOLDED, "rb", os.O_RDONLY) as old,
            self._open_file(fresh, "wb", written) as new,
        ):
            start = old.read(self._head_bytes + _LONGEST_MARK_BYTES)
            head, left_out = start[: self._head_bytes], 0
            if earlier := _LEFT_OUT.search(start):
                head, left_out = start[: earlier.start()], int(earlier[1]) - len(earlier[0])
            head = head[: head.rfind(b"\n") + 1]
            old.seek(max(len(head), size - self._limit_bytes // 4))
            old.readline()
            new.write(head + b"[%d bytes left out]\n" % (left_out + old.tell() - len(head)))
            while chunk := old.read(_COPY_BYTES):
                new.write(chunk)
        (self._attempt / fresh).replace(self._attempt / attempt_files.FOLDED)


class RawFile:
    """`output.log`, to which the training appends: holes free disk space, the size that `ls` shows is unchanged."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._punched_to = 0
        self._knows_holes = True

    def give_up(self) -> None:
        """Stop punching holes: the file system or the file's owner does not allow it."""
        self._knows_holes = False

    def give_back(self, fd: int, read_to: int) -> None:
        """Free the disk space before `read_to` except the newest half of the limit, once the limit is exceeded.

        `fd` must be writable. Raises OSError if the file system does not support holes.
        """
        end = (read_to - self._limit_bytes // 2) // _BLOCK_BYTES * _BLOCK_BYTES
        if not self._knows_holes or read_to - self._punched_to <= self._limit_bytes or end <= self._punched_to:
            return
        mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
        if _libc.fallocate64(fd, mode, self._punched_to, end - self._punched_to) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._punched_to = end
