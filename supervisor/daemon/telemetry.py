"""Takes the periodic readings (GPUs, host, process trees) and follows the kernel log."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, GpuReading, HostReading
from supervisor.daemon.clock import Clock
from supervisor.daemon.threads import Threads
from supervisor.sources.host import HostWatch, read_disk
from supervisor.sources.processes import TreeWatch

log = logging.getLogger(__name__)

RETRY_MS = 10_000
DISK_WAIT_S = 0.5
"""A file system that answers at all has done so by then."""


class NewestReadings:
    """The newest readings from the loop; other threads read them, and each update replaces the complete value."""

    def __init__(self) -> None:
        self.gpus: dict[str, GpuReading] = {}
        self.host: HostReading | None = None

    def take(self, event: ev.Event) -> None:
        """Take in an event."""
        if isinstance(event, ev.GpusRead):
            self.gpus = {**self.gpus, **{reading.gpu: reading for reading in event.readings}}
        elif isinstance(event, ev.HostRead):
            self.host = event.reading


class GpuReader(Protocol):
    """A reader of the GPUs."""

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return one reading of each GPU that answers."""
        ...


class Telemetry:
    """One round of readings a call; each kind has its own call, so that one that hangs delays no other."""

    def __init__(
        self,
        clock: Clock,
        put: Callable[[ev.Event], None],
        gpu_reader: GpuReader,
        find_paths: Callable[[], Iterable[Path]],
        threads: Threads | None = None,
    ) -> None:
        """`find_paths` returns by which paths disks are to be read, as of now: a reload may name others."""
        self._clock = clock
        self._put = put
        self._gpu_reader = gpu_reader
        self._host = HostWatch(())
        self._threads = threads or Threads(clock, put)
        self._find_paths = find_paths
        self._disks: dict[Path, DiskReading | None] = {}
        self._trees: dict[int, TreeWatch] = {}
        self.live: Callable[[], tuple[tuple[str, int, int], ...]] = tuple
        """Returns (job, attempt, shim pid) of each live attempt."""

    def read_gpus(self) -> None:
        """Read every GPU."""
        readings = self._gpu_reader.read(self._clock.now())
        if readings:
            self._put(ev.GpusRead(at=self._clock.now(), readings=readings))

    def read_host(self) -> None:
        """Read the machine."""
        now = self._clock.now()
        reading = replace(self._host.read(now), disks=self._read_disks())
        self._put(ev.HostRead(at=now, reading=reading))

    def _read_disks(self) -> tuple[DiskReading, ...]:
        """Return what the file systems say; of one that does not answer, nothing."""
        answered = []
        for path in dict.fromkeys(self._find_paths()):
            lane, done = self._threads.lane("space of", str(path), of_job=False), threading.Event()
            if lane.busy:
                continue
            lane.do(f"statfs of {path}", partial(self._read_disk, path, done))
            answered.append((path, done))
        found = [self._disks[path] for path, done in answered if done.wait(DISK_WAIT_S)]
        return tuple(disk_reading for disk_reading in found if disk_reading is not None)

    def _read_disk(self, path: Path, done: threading.Event) -> None:
        self._disks[path] = read_disk(path)
        done.set()

    def read_processes(self) -> None:
        """Read the process tree of each live attempt: /proc of a process that hangs may hang, too."""
        live = self.live()
        self._trees = {pid: self._trees.get(pid) or TreeWatch(pid) for _, _, pid in live}
        for job, attempt, pid in live:
            read = partial(self._read_tree, job, attempt, self._trees[pid])
            self._threads.lane("processes", job).do(f"reading the processes of {pid}", read, key="tree")

    def _read_tree(self, job: str, attempt: int, tree: TreeWatch) -> None:
        now = self._clock.now()
        self._put(ev.ProcessesRead(at=now, job=job, attempt=attempt, reading=tree.read(now)))


class KernelSource(Protocol):
    """A source of kernel messages: its log, the journal, uevents."""

    @property
    def problem(self) -> str | None:
        """Why it cannot be read, None while it can."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 while there is none."""
        ...

    def read(self, now: Moment) -> ev.KernelReported | None:
        """Return what was reported since the last read."""
        ...


class KernelWatch(threading.Thread):
    """Waits for kernel messages; a line is read as soon as it is written."""

    def __init__(
        self, clock: Clock, put: Callable[[ev.Event], None], name: str, source: KernelSource, retry_ms: int = RETRY_MS
    ) -> None:
        super().__init__(name=f"{name}-watch", daemon=True)
        self._clock = clock
        self._put = put
        self._source = name
        self._log = source
        self._lost = 0
        self._retry_ms = retry_ms

    @property
    def source(self) -> str:
        """Where it listens: `kmsg`, `journal`, `uevents`."""
        return self._source

    @property
    def lost(self) -> int:
        """How many lines of the kernel log were overwritten before they were read, since the daemon began."""
        return self._lost

    @property
    def problem(self) -> str | None:
        """Why the log cannot be read, None while it can."""
        return self._log.problem

    def run(self) -> None:
        """Read on for ever; while the log cannot be read, try again from time to time."""
        problem: str | None = None
        while True:
            report = self._log.read(self._clock.now())
            if report is not None:
                self._put(report)
                if report.lost_lines:
                    self._lost += report.lost_lines
                    fields = {"source": self._source, "lines": report.lost_lines}
                    log.warning("kernel.overrun", extra={"fields": fields})
            if self._log.problem != problem:
                problem = self._log.problem
                now = self._clock.now()
                detail = problem or "reads"
                self._put(ev.SourceChanged(at=now, source=self._source, answering=problem is None, detail=detail))
            self._wait_for_line()

    def _wait_for_line(self) -> None:
        poller = select.poll()
        if (descriptor := self._log.fileno()) >= 0:
            poller.register(descriptor, select.POLLIN)
        poller.poll(self._retry_ms)
