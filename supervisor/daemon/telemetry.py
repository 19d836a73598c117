"""Takes the periodic readings (cards, machine, process trees) and watches the kernel log; it concludes nothing."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.daemon.attempt_watch import Clock
from supervisor.sources.host import HostWatch
from supervisor.sources.processes import TreeWatch

log = logging.getLogger(__name__)

RETRY_MS = 10_000


class Cards(Protocol):
    """Whatever reads the cards."""

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return one reading of each card that answers."""
        ...


class Telemetry:
    """One round of readings a call; each kind has its own call, so that one that hangs delays no other."""

    def __init__(self, clock: Clock, put: Callable[[ev.Event], None], cards: Cards, paths: tuple[Path, ...]) -> None:
        self._clock = clock
        self._put = put
        self._cards = cards
        self._host = HostWatch(paths)
        self._trees: dict[int, TreeWatch] = {}
        self.live: Callable[[], tuple[tuple[str, int, int], ...]] = tuple
        """Returns (job, attempt, shim pid) of each live attempt."""

    def read_cards(self) -> None:
        """Read every card."""
        readings = self._cards.read(self._clock.now())
        if readings:
            self._put(ev.GpusRead(at=self._clock.now(), readings=readings))

    def read_host(self) -> None:
        """Read the machine."""
        now = self._clock.now()
        self._put(ev.HostRead(at=now, reading=self._host.read(now)))

    def read_processes(self) -> None:
        """Read the process tree of each live attempt."""
        live = self.live()
        self._trees = {pid: self._trees.get(pid) or TreeWatch(pid) for _, _, pid in live}
        for job, attempt, pid in live:
            now = self._clock.now()
            self._put(ev.ProcessesRead(at=now, job=job, attempt=attempt, reading=self._trees[pid].read(now)))


class KernelSource(Protocol):
    """What the kernel speaks through: its log, the journal, uevents."""

    @property
    def problem(self) -> str | None:
        """Why it cannot be read, None while it can."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 while there is none."""
        ...

    def read(self, now: Moment) -> ev.KernelSaid | None:
        """Return what was said since the last read."""
        ...


class KernelWatch(threading.Thread):
    """Waits for the kernel to speak; a line is read as soon as it is written."""

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
        """How many lines were overwritten before they were read, since the daemon began."""
        return self._lost

    @property
    def problem(self) -> str | None:
        """Why the log cannot be read, None while it can."""
        return self._log.problem

    def run(self) -> None:
        """Read on for ever; while the log cannot be read, try again from time to time."""
        problem: str | None = None
        while True:
            said = self._log.read(self._clock.now())
            if said is not None:
                self._put(said)
                if said.lost_lines:
                    self._lost += said.lost_lines
                    fields = {"source": self._source, "lines": said.lost_lines}
                    log.warning("kernel.overrun", extra={"fields": fields})
            if self._log.problem != problem:
                problem = self._log.problem
                now = self._clock.now()
                detail = problem or "reads"
                self._put(ev.SourceChanged(at=now, source=self._source, answering=problem is None, detail=detail))
            self._wait()

    def _wait(self) -> None:
        poller = select.poll()
        if (descriptor := self._log.fileno()) >= 0:
            poller.register(descriptor, select.POLLIN)
        poller.poll(self._retry_ms)
