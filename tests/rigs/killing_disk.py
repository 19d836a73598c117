"""A disk at whose change a process is killed: the file system of `tests/rigs/failing_disk.py`, which counts them."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from supervisor.runner.code_copy import FOLDER as CODE
from tests.rigs.failing_disk import FailingDisk
from tests.rigs.hanging_fs import ATTR, ENTRY, GETATTR, mounted

KEPT_S = 60
"""How long the kernel keeps what it was answered about a file of the code."""


class KillingDisk(FailingDisk):
    """The server of one mount; the change at which it kills is made all the same, as one is that was under way."""

    def __init__(self, real: Path, at: Path) -> None:
        self.killed_at: str | None = None
        """The change at which the process was killed."""
        self._find_pid: Callable[[], int | None] | None = None
        self._number: int | None = None
        self._counted_from = 0
        super().__init__(real, at)

    def arm(self, number: int | None, find_pid: Callable[[], int | None]) -> None:
        """Count from here on, and kill the process of `find_pid` at the change of this number, counted from 1."""
        self._counted_from, self._number, self._find_pid = len(self.changes), number, find_pid

    def disarm(self) -> list[str]:
        """Kill no more; return the changes since it was armed."""
        self._find_pid = None
        return self.changes[self._counted_from :]

    def _entry(self, path: Path) -> bytes:
        entry, kept_s = super()._entry(path), self._find_kept_s(path)
        number, *_ = ENTRY.unpack_from(entry)
        return ENTRY.pack(number, 0, kept_s, kept_s, 0, 0) + entry[ENTRY.size :]

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        answer = super()._answer(opcode, node, body)
        if opcode != GETATTR:
            return answer
        return struct.pack("<QII", self._find_kept_s(self._paths.get(node, self.real)), 0, 0) + answer[-ATTR.size :]

    def _find_kept_s(self, path: Path) -> int:
        """Return how long the kernel may keep what a name stands for: what trainings run changes through here alone.

        A launch looks at hundreds of these files, without it two thirds of what a short life asks of this disk.
        """
        return KEPT_S if path.relative_to(self.real).parts[:2] in (("state",), ("state", CODE)) else 0

    def _count_change(self, opcode: int, node: int, body: bytes) -> None:
        before = len(self.changes)
        super()._count_change(opcode, node, body)
        if len(self.changes) == before or self._find_pid is None or self.killed_at is not None:
            return
        if len(self.changes) - self._counted_from == self._number and (pid := self._find_pid()) is not None:
            os.kill(pid, signal.SIGKILL)
            self.killed_at = self.changes[-1]


def killing(at: Path, real: Path) -> AbstractContextManager[KillingDisk]:
    """Mount one over two folders that are made for it; skips the test where it may not."""
    return mounted(KillingDisk, at, real)
