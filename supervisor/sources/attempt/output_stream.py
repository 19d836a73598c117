"""Reads one file of a training's output at a bounded cost per read, by whatever name that file has meanwhile.

A log rotation renames the file and the training goes on writing to it: what is followed is the file, not its path.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files
from supervisor.rotated_output import find_rotated, list_rotated, status_of
from supervisor.sources.attempt.folding import Folded, Folder
from supervisor.sources.attempt.output_files import RawFile

BYTES_PER_READ = 1 << 20
BEHIND_LIMIT_BYTES = 4 << 20
"""Further behind than this, the reader skips: about one second of the fastest plausible output."""
MOVED = "was moved or removed while the training writes to it, and is not in its folder: what it prints is not seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The result of one read of one file."""

    new_bytes: int = 0
    """Bytes read or skipped since the last read."""
    folded: Folded = field(default_factory=Folded)
    skipped_bytes: int = 0
    behind_bytes: int = 0
    problem: str | None = None


class OutputStream:
    """One file of the output, read from `read_to` (bytes) on.

    With `keep_open` it has one descriptor from the first read to `close`, and is read also where it has no name any
    more; without, it is looked for in its folder.
    """

    def __init__(
        self, attempt: Path, limit_bytes: int, *, name: str = attempt_files.OUTPUT, read_to: int = 0, keep_open: bool
    ) -> None:
        self.grown_at_look = 0
        """When it last had something new, counted in looks of its reader."""
        self.folder = Folder()
        self.read_to = read_to
        self.rest_state: untrusted_files.FileState | None = None
        """State of the file when it was read to its end; None while there is more to do with it."""
        self._attempt = attempt
        self._name = name
        self._raw = RawFile(limit_bytes)
        self._keep_open = keep_open
        self._fd = -1
        self._file: tuple[int, int] | None = None
        """Device and inode number; None before the first read."""

    @property
    def offset(self) -> int:
        """Bytes of the file that a new reader does not need to read again."""
        return self.read_to - self.folder.unsettled_bytes

    @property
    def is_open(self) -> bool:
        """Whether it holds a descriptor, so that it can be read whatever is at its path."""
        return self._fd >= 0

    def is_other_than(self, status: os.stat_result | None) -> bool:
        """Whether it was read, and a file of this status (None: no file) is not the one that was."""
        return self._file is not None and (status is None or self._file != (status.st_dev, status.st_ino))

    def read(self) -> Piece:
        """Read at most 1 MiB that is new. Raises OSError, FileNotFoundError where it has no name to be found by."""
        fd = self._fd if self._fd >= 0 else self._open()
        try:
            return self._read_from(fd)
        finally:
            if self._keep_open:
                self._fd = fd
            else:
                os.close(fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        """Return a descriptor of the file, found by its number where it was renamed."""
        if self._file is None:
            fd = self._open_name(self._name)
            status = os.fstat(fd)
            self._file = status.st_dev, status.st_ino
            return fd
        for name in chain([self._name], list_rotated(self._attempt)):
            if not self.is_other_than(status_of(self._attempt, name)):
                self._name = name
                return self._open_name(name)
        raise FileNotFoundError(errno.ENOENT, MOVED, attempt_files.OUTPUT)

    def _open_name(self, name: str) -> int:
        try:
            # Refuse a file with a second name: punching holes would destroy data of another file's owner.
            return untrusted_files.open_file(self._attempt, name, os.O_RDWR, only_name=True)
        except PermissionError:
            # A training of another user: the file can be read, but no holes can be punched.
            return untrusted_files.open_file(self._attempt, name)

    def _read_from(self, fd: int) -> Piece:
        self.rest_state = None
        status = os.fstat(fd)
        size = status.st_size
        copied = Folded()
        if size < self.read_to:
            # The file was truncated; its present content has not been read.
            copied = self._read_copied()
            self.read_to, self.folder = 0, Folder()
        before = self.read_to
        folded, skipped = self._catch_up(size)
        folded = Folded(copied.lines + folded.lines, copied.segments + folded.segments)
        data = os.pread(fd, BYTES_PER_READ, self.read_to)
        self.read_to += len(data)
        more = self.folder.feed(_skip_partial_character(data) if skipped else data)
        folded.lines += more.lines
        folded.segments += more.segments
        problem = self._free_read_part(fd) if status.st_nlink <= 1 else None
        # Only after a read without new bytes: how much can be freed depends on the final size.
        if self.read_to == before == size and problem is None:
            self.rest_state = untrusted_files.state_of(status)
        return Piece(
            new_bytes=self.read_to - before,
            folded=folded,
            skipped_bytes=skipped,
            behind_bytes=max(0, size - self.read_to),
            problem=problem,
        )

    def _read_copied(self) -> Folded:
        """Return what was not read of it before it was truncated: logrotate's `copytruncate` has copied that."""
        copy = next((name for name, size in find_rotated(self._attempt, 1) if size >= self.read_to), None)
        if copy is None:
            return Folded()
        folded = self.folder.feed(untrusted_files.read_part(self._attempt, copy, self.read_to, BEHIND_LIMIT_BYTES))
        rest = self.folder.finish()
        return Folded(folded.lines + rest.lines, folded.segments + rest.segments)

    def _catch_up(self, size: int) -> tuple[Folded, int]:
        if size - self.read_to <= BEHIND_LIMIT_BYTES:
            return Folded(), 0
        folded = self.folder.finish()
        skipped = size - BYTES_PER_READ - self.read_to
        self.read_to += skipped
        folded.lines.append(f"[{skipped} bytes of output skipped]")
        return folded, skipped

    def _free_read_part(self, fd: int) -> str | None:
        try:
            self._raw.give_back(fd, self.read_to)
        except OSError as error:
            self._raw.give_up()
            return f"{Path(self._name).name}: cannot be kept within its size limit: {error.strerror or error}"
        return None


def _skip_partial_character(data: bytes) -> bytes:
    """Drop the rest of a UTF-8 character that was cut by skipping."""
    cut = 0
    while cut < min(3, len(data)) and data[cut] & 0xC0 == 0x80:
        cut += 1
    return data[cut:]
