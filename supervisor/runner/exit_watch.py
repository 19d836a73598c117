"""Reports when a shim exits, by pidfd instead of polling; it does not reap the process."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.runner import shim

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimGone:
    """The shim of an attempt has ended; its exit.json, if there will ever be one, is there now."""

    job: str
    attempt: int


class ExitWatch:
    """One thread over the pidfds of all shims, whoever their parent is."""

    def __init__(self, put: Callable[[ShimGone], None]) -> None:
        """`put` is called in the watching thread, once for each shim that was added."""
        self._put = put
        self._lock = threading.Lock()
        self._watched: dict[int, ShimGone] = {}
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._bell, select.EPOLLIN)
        self._gone: list[ShimGone] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="exit-watch", daemon=True)
        self._thread.start()

    def add(self, job: str, attempt: int, shim_pid: int, start_ticks: int) -> None:
        """Watch a shim; one that is gone already, or whose number another process has now, is told at once."""
        told = ShimGone(job=job, attempt=attempt)
        try:
            handle = os.pidfd_open(shim_pid)
        except OSError:
            self._tell(told)
            return
        process = shim.read_process(shim_pid)  # after the pidfd, so that both mean the same process
        if process is None or process.start_ticks != start_ticks:
            os.close(handle)
            self._tell(told)
            return
        with self._lock:
            self._watched[handle] = told
        self._poll.register(handle, select.EPOLLIN)

    def close(self) -> None:
        """End the thread; shims that still run go on unwatched."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        for handle in (*self._watched, self._bell):
            os.close(handle)
        self._poll.close()

    def _tell(self, told: ShimGone) -> None:
        with self._lock:
            self._gone.append(told)
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        while not self._stopping:
            for handle, _ in self._poll.poll():
                for shim_gone in self._told_by(handle):
                    log.debug("shim.gone", extra={"fields": {"job": shim_gone.job, "attempt": shim_gone.attempt}})
                    self._put(shim_gone)

    def _told_by(self, handle: int) -> list[ShimGone]:
        if handle == self._bell:
            os.eventfd_read(self._bell)  # before the list is taken: what comes later rings again
            with self._lock:
                gone, self._gone = self._gone, []
            return gone
        with self._lock:
            told = self._watched.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        return [told]
