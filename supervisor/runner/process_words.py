"""Reads command lines and environments of processes, none of which can hold up who asks for them.

The kernel reads them from the memory of the process, whose lock any of its threads may hold: one that waits in a driver
while it unmaps memory keeps a reader until it is done, also where the thread that /proc names for the process sleeps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path

from supervisor.children.worker_threads import WorkerThreads
from supervisor.runner.process_table import Process

LIMIT_S = 1.0
"""One file takes microseconds; a machine under load may not give the reader its turn for long."""
HANGING_AT_MOST = 16
"""Where so many processes keep a thread each, none is asked any more."""

_readers = WorkerThreads("process words")
_lock = threading.Lock()
_stuck: dict[tuple[int, int], Future[None]] = {}
"""What still reads of a process, by its pid and start: it is not asked again until that has ended."""


class _Reading:
    """Reads one file of each of some processes in a thread, which may hang at one of them."""

    def __init__(self, processes: Sequence[Process], name: str, *, own: bool) -> None:
        self.processes, self._name, self._own = processes, name, own
        self.found: dict[int, list[bytes]] = {}
        self.done = 0
        self.abandoned = False

    def run(self) -> None:
        """Read until the last, or until it was given up."""
        for process in self.processes:
            words = _read(process, self._name, own=self._own)
            if self.abandoned:
                return
            self.found[process.pid] = words
            self.done += 1


def read_words(processes: Sequence[Process], name: str, *, own: bool = True) -> Mapping[int, list[bytes]]:
    """Return by pid what `cmdline` or `environ` of each process lists; [] of one at which the reading hangs.

    With `own` it is [] of another user's as well, and of one in state D, which is then not asked.
    """
    found: dict[int, list[bytes]] = {}
    left = _leave_out_stuck(processes)
    while left:
        reading = _Reading(left, name, own=own)
        try:
            under_way = _readers.do(reading.run)
        except (RuntimeError, MemoryError):  # no room for a thread
            reading.run()
            found |= reading.found
            break
        hangs = _await(reading, under_way)
        found |= reading.found
        if hangs is None:
            break
        with _lock:
            _stuck[hangs.pid, hangs.start_ticks] = under_way
        left = _leave_out_stuck(left[reading.done + 1 :])
    return found | {process.pid: [] for process in processes if process.pid not in found}


def _await(reading: _Reading, under_way: Future[None]) -> Process | None:
    """Wait until all are read; give the reading up where one of them takes `LIMIT_S`, and return that one."""
    while True:
        before = reading.done
        if wait((under_way,), LIMIT_S).done:
            return None
        if reading.done == before:
            reading.abandoned = True
            return reading.processes[before]


def _leave_out_stuck(processes: Sequence[Process]) -> list[Process]:
    """Return the processes that can be asked: those at which no reader hangs, and none where too many readers do."""
    with _lock:
        for key in [key for key, under_way in _stuck.items() if under_way.done()]:
            del _stuck[key]
        if len(_stuck) >= HANGING_AT_MOST:
            return []
        return [process for process in processes if (process.pid, process.start_ticks) not in _stuck]


def _read(process: Process, name: str, *, own: bool) -> list[bytes]:
    if process.dead or (own and process.state == "D"):
        return []
    at = Path(f"/proc/{process.pid}")
    try:
        return [] if own and at.stat().st_uid != os.geteuid() else (at / name).read_bytes().split(b"\0")
    except OSError:
        return []
