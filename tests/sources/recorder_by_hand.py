"""An agent by hand: writes a flight recorder as `core/folder.py` lays it out, and damages it where a test asks."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.core import folder


class Writer:
    """An agent of ten lines: it writes records as `core/folder.py` lays them out."""

    def __init__(self, path: Path, capacity: int = 8) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.capacity, self.head = capacity, 0
        os.ftruncate(self.fd, folder.HEADER_BYTES + capacity * folder.RECORD.size)
        identity = folder.IDENTITY.pack(folder.MAGIC, folder.HEADER_BYTES, folder.RECORD.size, capacity, 0)
        os.pwrite(self.fd, identity, 0)

    def write(self, step: int, *, known: int = 63, loss: float = 0.5) -> None:
        sequence = self.head + 1
        check = (sequence & 0xFFFFFFFF) ^ folder.CHECK_XOR
        record = folder.RECORD.pack(sequence, step, step * 10**9, 3, known, loss, 0.01, 1.5, 0.25, 1 << 30, check)
        os.pwrite(self.fd, record, folder.HEADER_BYTES + self.head % self.capacity * folder.RECORD.size)
        self.head = sequence
        os.pwrite(self.fd, folder.HEAD.pack(sequence), folder.HEAD_OFFSET)

    def scribble(self, number: int) -> None:
        os.pwrite(self.fd, b"\xaa" * 40, folder.HEADER_BYTES + number % self.capacity * folder.RECORD.size + 16)
        os.pwrite(self.fd, b"\xaa" * 8, folder.HEADER_BYTES + (number % self.capacity + 1) * folder.RECORD.size - 8)
