"""A part of an open file as a file of its own, so that no more of it is held than is looked at."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO, Optional


class Window(io.RawIOBase):
    """A part of an open file, as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        """Begin at its first byte."""
        super().__init__()
        self.file, self.start, self.length, self.at = file, start, length, 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read anywhere."""
        return True

    def tell(self) -> int:
        """Return where the next byte is read."""
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place; none lies before the beginning."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError("negative place")
        self.at = base + offset
        return self.at

    def read(self, size: Optional[int] = -1) -> bytes:
        """Return at most `size` bytes, fewer only at the end."""
        left = max(0, self.length - self.at)
        wanted = left if size is None or size < 0 else min(size, left)
        self.file.seek(self.start + self.at)
        data = self.file.read(wanted)
        self.at += len(data)
        return data

    def readinto(self, into: Any) -> int:
        """Read into a buffer; return how many bytes."""
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)
