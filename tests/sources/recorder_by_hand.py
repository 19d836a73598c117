"""An agent by hand: writes a flight recorder as `core/attempt_files.py` lays it out, damaged where a test asks."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.core import attempt_files


class Writer:
    """An agent of ten lines: it writes records as `core/attempt_files.py` lays them out."""

    def __init__(self, path: Path, capacity: int = 8) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.capacity, self.head = capacity, 0
        os.ftruncate(self.fd, attempt_files.HEADER_BYTES + capacity * attempt_files.RECORD.size)
        identity = attempt_files.IDENTITY.pack(
            attempt_files.MAGIC, attempt_files.HEADER_BYTES, attempt_files.RECORD.size, capacity, 0
        )
        os.pwrite(self.fd, identity, 0)

    def write(
        self,
        step: int,
        *,
        known: int = 63,
        loss: float = 0.5,
        at_ns: int | None = None,
        epoch: int = 3,
        data_wait_s: float = 0.25,
        gpu_memory: int = 1 << 30,
        samples: int = 0,
        tokens: int = 0,
    ) -> None:
        sequence = self.head + 1
        check = (sequence & 0xFFFFFFFF) ^ attempt_files.CHECK_XOR
        written_ns = step * 10**9 if at_ns is None else at_ns
        record = attempt_files.RECORD.pack(
            *(
                sequence,
                step,
                written_ns,
                epoch,
                known,
                loss,
                0.01,
                1.5,
                data_wait_s,
                gpu_memory,
                samples,
                tokens,
                check,
            )
        )
        os.pwrite(self.fd, record, attempt_files.HEADER_BYTES + self.head % self.capacity * attempt_files.RECORD.size)
        self.head = sequence
        os.pwrite(self.fd, attempt_files.HEAD.pack(sequence), attempt_files.HEAD_OFFSET)

    def write_and_close(self, step: int) -> None:
        """One step, and no more."""
        self.write(step)
        os.close(self.fd)

    def scribble(self, number: int) -> None:
        os.pwrite(
            self.fd, b"\xaa" * 40, attempt_files.HEADER_BYTES + number % self.capacity * attempt_files.RECORD.size + 16
        )
        os.pwrite(
            self.fd,
            b"\xaa" * 8,
            attempt_files.HEADER_BYTES + (number % self.capacity + 1) * attempt_files.RECORD.size - 8,
        )
