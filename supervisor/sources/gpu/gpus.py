"""Queries all sources of GPU readings, isolated from each other, and takes the best reading of each GPU.

Each source runs in its own thread: a source that hangs (a tool that waits for a GPU in reset) delays one round by its
`wait_s` and no later round. Sources are in order of preference. A source is queried only while no earlier source
returns measurements for every GPU of the vendor, because the later ones start a process per reading and wake
suspended GPUs.
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
"""Fields that may be known of a GPU whose sensors report nothing."""
_MEASURED = tuple(field.name for field in fields(GpuReading) if field.name not in _IDENTITY)
SOURCES: dict[str, Callable[[Path], GpuSource]] = {
    AmdgpuSysfs.name: AmdgpuSysfs,
    RocmSmi.name: lambda sys_root: RocmSmi(sys_root=sys_root),
    AmdSmi.name: lambda sys_root: AmdSmi(sys_root=sys_root),
    Pyamdgpuinfo.name: lambda _sys_root: Pyamdgpuinfo(),
    Nvml.name: lambda sys_root: Nvml(sys_root=sys_root),
    NvidiaSmi.name: lambda sys_root: NvidiaSmi(sys_root=sys_root),
}
"""By the name used in settings, preferred first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The status of one source."""

    name: str
    answering: bool
    detail: str
    """The GPUs of its last answer, or why it does not answer."""
    cost_s: float | None
    """Duration of its last query; None before the first."""


class GpuWatch:
    """All GPUs of the machine, each read through the best source that answers."""

    def __init__(self, sources: Iterable[str | GpuSource] = tuple(SOURCES), sys_root: Path = Path("/sys")) -> None:
        """Use sources, given by name or as objects, in order of preference. Raises ValueError for an unknown name."""
        self._runners = tuple(_SourceRunner(_make_source(source, sys_root)) for source in sources)

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return the best available reading of each GPU; a slow source's readings are returned in a later round."""
        best: dict[str, tuple[str, GpuReading]] = {}
        satisfied: set[str] = set()
        for runner in self._runners:
            if runner.vendor not in satisfied:
                runner.ask(now)
            for reading in runner.collect(now):
                kept = best.get(reading.gpu)
                if kept is None or (not answers(kept[1]) and answers(reading)):
                    best[reading.gpu] = runner.vendor, reading
            known = [reading for vendor, reading in best.values() if vendor == runner.vendor]
            if runner.answers_slowly or (known and all(map(answers, known))):
                satisfied.add(runner.vendor)
        return tuple(best[gpu][1] for gpu in sorted(best))

    def status(self) -> tuple[SourceStatus, ...]:
        """Return the status of each source, in order of preference."""
        return tuple(runner.status() for runner in self._runners)

    def close(self) -> None:
        """End the sources' threads; a thread that hangs is left running and does not block the exit."""
        for runner in self._runners:
            runner.close()


def answers(reading: GpuReading) -> bool:
    """Whether the reading has any measurement; a suspended GPU also counts, since it must not be woken."""
    return reading.runtime_status in ("suspended", "suspending") or any(
        getattr(reading, name) is not None for name in _MEASURED
    )


def _make_source(source: str | GpuSource, sys_root: Path) -> GpuSource:
    if not isinstance(source, str):
        return source
    if source not in SOURCES:
        raise ValueError(f"telemetry.sources: {source!r} is not a source; available: {', '.join(SOURCES)}")
    return SOURCES[source](sys_root)


class _SourceRunner:
    """Runs one source: a thread that queries it, a deadline, and a pause after repeated failures."""

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
        """Start a query, unless one is running, the source is paused, or its interval has not passed."""
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
        """Return the readings since the last call, after waiting at most `wait_s` for a running query."""
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
        """Whether the last query succeeded and the source is not waited for, so that no other is needed meanwhile."""
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
            answered = any(map(answers, readings))
            self._readings, self._cost_s = readings, cost_s
            self._answering = answered
            self._detail = error or (
                _describe_gpus(readings) if answered else "lists GPUs, but reports no sensor values"
            )
            self._failures = 0 if answered else self._failures + 1
            # Sensors without values mean a GPU in reset or removed: the source is not paused, the GPU may return.
            if error and self._failures >= FAILURES_BEFORE_REST:
                rest_s = min(REST_S * 2.0 ** (self._failures - FAILURES_BEFORE_REST), LONGEST_REST_S)
                assert self._asked is not None
                self._rest_until = self._asked.plus(rest_s)
            self._busy = False
        self._done.set()


def _describe_gpus(readings: tuple[GpuReading, ...]) -> str:
    return ", ".join(f"{reading.gpu}{f' {reading.name}' if reading.name else ''}" for reading in readings)
