"""Reads a job's recorded checkpoints within a time limit: the disk of the record may never answer."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.daemon.threads import Threads

READ_LIMIT_S = 5.0


class KnownCheckpoints(Protocol):
    """A job's recorded checkpoints; None where the record cannot be read. Asked in threads that may block."""

    def __call__(self, job: str, files: Collection[str] | None = None, /) -> tuple[Checkpoint, ...] | None:
        """Return all of them, or only certain files and the generations that were captured from them."""


class ReadInTime:
    """Implements KnownCheckpoints: each job's reads in a thread of their own, which alone waits for the disk."""

    def __init__(self, read: KnownCheckpoints, threads: Threads, limit_s: float = READ_LIMIT_S) -> None:
        self._read = read
        self._threads = threads
        self._limit_s = limit_s

    def __call__(self, job: str, files: Collection[str] | None = None, /) -> tuple[Checkpoint, ...] | None:
        """Return the checkpoints; None where the record cannot be read, or not within the limit."""
        answer: Future[tuple[Checkpoint, ...] | None] = Future()

        def read() -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(self._read(job, files))

        self._threads.lane("the record of checkpoints", job).do("reading the record", read)
        try:
            return answer.result(self._limit_s)
        except FutureTimeoutError:
            answer.cancel()  # what waits behind a read that hangs is not done any more
            return None
