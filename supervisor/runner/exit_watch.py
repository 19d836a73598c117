"""Reports when a shim exits, by pidfd instead of polling; it does not reap the process."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.runner import process_table
from supervisor.runner.attempt_folder import is_hidden

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimGone:
    """The shim of an attempt has ended; its exit.json has been written, if it wrote one."""

    job: str
    attempt: int


class ExitWatch:
    """One thread that polls the pidfds of all shims, including those that are not children."""

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
        """Watch a shim; if it has already ended, or its pid was reused, its exit is reported immediately."""
        exit_event = ShimGone(job=job, attempt=attempt)
        try:
            handle = os.pidfd_open(shim_pid)
        except OSError:
            self._queue_exit(exit_event)
            return
        process = process_table.read_process(shim_pid)  # after the pidfd, so that both mean the same process
        if not is_hidden(shim_pid) and (process is None or process.start_ticks != start_ticks):
            os.close(handle)
            self._queue_exit(exit_event)
            return
        with self._lock:
            self._watched[handle] = exit_event
        self._poll.register(handle, select.EPOLLIN)

    def close(self) -> None:
        """End the thread; shims that still run are no longer watched."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        for handle in (*self._watched, self._bell):
            os.close(handle)
        self._poll.close()

    def _queue_exit(self, exit_event: ShimGone) -> None:
        with self._lock:
            self._gone.append(exit_event)
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        while not self._stopping:
            for handle, _ in self._poll.poll():
                for shim_gone in self._collect_exits(handle):
                    log.debug("shim.gone", extra={"fields": {"job": shim_gone.job, "attempt": shim_gone.attempt}})
                    self._put(shim_gone)

    def _collect_exits(self, handle: int) -> list[ShimGone]:
        if handle == self._bell:
            os.eventfd_read(self._bell)  # before the list is taken: a later exit signals again
            with self._lock:
                gone, self._gone = self._gone, []
            return gone
        with self._lock:
            exit_event = self._watched.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        return [exit_event]
