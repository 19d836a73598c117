"""Queries all sources of GPU readings, isolated from each other, and takes the best reading of each GPU.

A source lives in a thread of its own: one that hangs (a tool that waits for a card in reset) delays one round by its
`wait_s` and no later one. Sources stand in order of preference; the next is asked only for as long as no earlier one
answers with measurements for every card of its vendor, because the tools behind cost a process a reading and wake
sleeping cards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.amd_smi import AmdSmi
from supervisor.sources.gpu.amdgpu_sysfs import AmdgpuSysfs
from supervisor.sources.gpu.nvidia_smi import NvidiaSmi
from supervisor.sources.gpu.nvml import Nvml
from supervisor.sources.gpu.pyamdgpuinfo import Pyamdgpuinfo
from supervisor.sources.gpu.rocm_smi import RocmSmi
from supervisor.sources.gpu.source import GpuSource, SourceSilentError

log = logging.getLogger(__name__)

FAILURES_BEFORE_REST = 2
REST_S = 60.0
LONGEST_REST_S = 600.0
_IDENTITY = frozenset(
    {"at", "gpu", "source", "name", "unique_id", "gfx_version", "runtime_status", "index", "processes"}
)
_IDENTITY |= {"partition", "compute_partition", "memory_partition", "unified_memory", "performance_level"}
_IDENTITY |= {"pcie_lanes", "pcie_gts"}
"""What may be known of a card whose sensors say nothing."""
_MEASURED = tuple(field.name for field in fields(GpuReading) if field.name not in _IDENTITY)
SOURCES: dict[str, Callable[[Path], GpuSource]] = {
    AmdgpuSysfs.name: AmdgpuSysfs,
    RocmSmi.name: lambda _sys_root: RocmSmi(),
    AmdSmi.name: lambda _sys_root: AmdSmi(),
    Pyamdgpuinfo.name: lambda _sys_root: Pyamdgpuinfo(),
    Nvml.name: lambda sys_root: Nvml(sys_root=sys_root),
    NvidiaSmi.name: lambda sys_root: NvidiaSmi(sys_root=sys_root),
}
"""By the name that settings use, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How one source fares."""

    name: str
    answering: bool
    detail: str
    """What it last said, or why it says nothing."""
    cost_s: float | None
    """How long its last answer took; None before the first."""


class GpuWatch:
    """All cards of the machine, through the best source that answers for each."""

    def __init__(self, sources: Iterable[str | GpuSource] = tuple(SOURCES), sys_root: Path = Path("/sys")) -> None:
        """Take sources by name or ready made, in order of preference. Raises ValueError for a name that is none."""
        self._desks = tuple(_Desk(_make_source(source, sys_root)) for source in sources)

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return one reading a card, the best that is there now; sources that are slow answer in a later round."""
        best: dict[str, tuple[str, GpuReading]] = {}
        satisfied: set[str] = set()
        for desk in self._desks:
            if desk.vendor not in satisfied:
                desk.ask(now)
            for reading in desk.collect(now):
                kept = best.get(reading.gpu)
                if kept is None or (not answers(kept[1]) and answers(reading)):
                    best[reading.gpu] = desk.vendor, reading
            known = [reading for vendor, reading in best.values() if vendor == desk.vendor]
            if desk.answers_slowly or (known and all(map(answers, known))):
                satisfied.add(desk.vendor)
        return tuple(best[gpu][1] for gpu in sorted(best))

    def status(self) -> tuple[SourceStatus, ...]:
        """Return how each source fares, in order of preference."""
        return tuple(desk.status() for desk in self._desks)

    def close(self) -> None:
        """End the sources' threads; one that hangs is left behind, it keeps nothing from ending."""
        for desk in self._desks:
            desk.close()


def answers(reading: GpuReading) -> bool:
    """Whether the reading says anything; a sleeping card is an answer too, and none to wake it for."""
    return reading.runtime_status in ("suspended", "suspending") or any(
        getattr(reading, name) is not None for name in _MEASURED
    )


def _make_source(source: str | GpuSource, sys_root: Path) -> GpuSource:
    if not isinstance(source, str):
        return source
    if source not in SOURCES:
        raise ValueError(f"telemetry.sources: {source!r} is not a source; available: {', '.join(SOURCES)}")
    return SOURCES[source](sys_root)


class _Desk:
    """One source behind its fence: a thread that asks it, a deadline, and a rest after repeated failure."""

    def __init__(self, source: GpuSource) -> None:
        self._source = source
        self.vendor = source.vendor
        self._lock = threading.Lock()
        self._wanted: Moment | None = None
        self._wake = threading.Semaphore(0)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._readings: tuple[GpuReading, ...] = ()
        self._asked: Moment | None = None
        self._busy = False
        self._late = False
        self._failures = 0
        self._rest_until: Moment | None = None
        self._detail = "not queried yet"
        self._answering = False
        self._cost_s: float | None = None

    def ask(self, now: Moment) -> None:
        """Have the source read, unless it is still reading, resting, or was asked too short a time ago."""
        with self._lock:
            if self._busy or self._closing or self._is_resting(now) or self._was_asked_recently(now):
                return
            self._busy, self._late, self._asked, self._wanted = True, False, now, now
            self._done.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"source-{self._source.name}", daemon=True)
            self._thread.start()
        self._wake.release()

    def collect(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return what came since the last call, after waiting for an answer as long as this source deserves."""
        if self._busy and not self._late and self._source.wait_s > 0:
            self._done.wait(self._source.wait_s)
        with self._lock:
            if self._busy:
                self._late = True
                if self._asked and now.seconds_since(self._asked) >= self._source.deadline_s:
                    self._answering, self._detail = False, f"no answer for {now.seconds_since(self._asked):.0f} s"
            readings, self._readings = self._readings, ()
            return readings

    @property
    def answers_slowly(self) -> bool:
        """Whether the last answer was good and the next is not due in this round: no reason to ask others between."""
        return self._answering and self._source.wait_s == 0

    def status(self) -> SourceStatus:
        with self._lock:
            return SourceStatus(
                name=self._source.name, answering=self._answering, detail=self._detail, cost_s=self._cost_s
            )

    def close(self) -> None:
        self._closing = True
        self._wake.release()
        if self._thread is not None:
            self._thread.join(timeout=0.5)

    def _is_resting(self, now: Moment) -> bool:
        return self._rest_until is not None and now.seconds_since(self._rest_until) < 0

    def _was_asked_recently(self, now: Moment) -> bool:
        return self._asked is not None and now.seconds_since(self._asked) < self._source.interval_s

    def _serve(self) -> None:
        while True:
            self._wake.acquire()
            if self._closing:
                self._source.close()
                return
            assert self._wanted is not None
            started = time.perf_counter()
            try:
                readings, error = self._source.read(self._wanted), ""
            except SourceSilentError as silent:
                readings, error = (), str(silent)
            except Exception as failure:
                log.exception("source.failed", extra={"fields": {"source": self._source.name}})
                readings, error = (), f"{type(failure).__name__}: {failure}"
            self._record_answer(readings, error, time.perf_counter() - started)

    def _record_answer(self, readings: tuple[GpuReading, ...], error: str, cost_s: float) -> None:
        with self._lock:
            said = any(map(answers, readings))
            self._readings, self._cost_s = readings, cost_s
            self._answering = said
            self._detail = error or (_describe_gpus(readings) if said else "lists GPUs, but reports no sensor values")
            self._failures = 0 if said else self._failures + 1
            # A card whose sensors are silent is being reset or is gone: its source is asked on, the card may be back.
            if error and self._failures >= FAILURES_BEFORE_REST:
                rest_s = min(REST_S * 2.0 ** (self._failures - FAILURES_BEFORE_REST), LONGEST_REST_S)
                assert self._asked is not None
                self._rest_until = self._asked.plus(rest_s)
            self._busy = False
        self._done.set()


def _describe_gpus(readings: tuple[GpuReading, ...]) -> str:
    return ", ".join(f"{reading.gpu}{f' {reading.name}' if reading.name else ''}" for reading in readings)
