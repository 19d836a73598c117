"""VRAM high: a GPU's memory is nearly full, whichever process holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import Bound
from supervisor.core.stats.holds import lasted_s, newest_of
from supervisor.core.units import GB


@dataclass(frozen=True, slots=True, kw_only=True)
class VramHigh:
    """Memory use of `warn_fraction` is a warning; `limit_fraction` (or `limit_bytes`, where given) for `hold_s` acts.

    Where the job names no GPUs and the machine has several, it is not known whose GPU is full: it only warns.
    """

    name: ClassVar[str] = "vram_high"
    group: ClassVar[Group] = "memory"
    cause: ClassVar[str] = causes.FRAGMENTATION
    enabled: bool = True
    act: Act = True
    warn_fraction: float = 0.83
    """5 of 6 GB."""
    limit_fraction: float = 0.95
    limit_bytes: int | None = None
    hold_s: float = 10.0

    def may_flag(self, history: History) -> bool:
        """Whether the newest reading of a GPU is beyond either limit."""
        full, warn = self._bound_full(), self._bound_warn()
        return not history.over and any(
            full.may_be_reached(readings) or warn.may_be_reached(readings)
            for readings in history.readings_by_gpu().values()
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how full each GPU is, the fullest first: against the limit that acts, then against the warning."""
        if (why := history.why_no_gpu_readings()) is not None:
            return not_applicable("memory of its GPUs", why)
        gpus = [
            (newest_of(readings, _is_known, history.now), readings) for readings in history.readings_by_gpu().values()
        ]
        gpus.sort(key=lambda pair: _rank_fullness(pair[0]), reverse=True)
        acting = (self._measure_limit(history, readings) for _, readings in gpus)
        return (*acting, *(self._measure_warning(readings[-1].gpu, newest) for newest, readings in gpus))

    def _measure_limit(self, history: History, readings: Sequence[GpuReading]) -> Gauge:
        full = self._bound_full()
        named = Gauge(
            what=f"memory of {readings[-1].gpu}",
            unit="%" if self.limit_bytes is None else "bytes",
            severity=self._choose_severity(history),
            observe=partial(_observe_run, readings, full, history.now),
        )
        return full.measure(readings, history.now, named)

    def _measure_warning(self, gpu: str, newest: GpuReading | None) -> Gauge:
        percent = None if newest is None else _used_percent(newest)
        return Gauge(
            what=f"memory of {gpu}",
            unit="%",
            now=percent,
            limit=100 * self.warn_fraction,
            not_watched="not in any reading" if percent is None else None,
            observe=None if newest is None else partial(_observe_gpu, newest, ""),
        )

    def _bound_full(self) -> Bound[GpuReading]:
        if self.limit_bytes is not None:
            return Bound(value=_used_bytes, limit=self.limit_bytes, hold_s=self.hold_s)
        return Bound(value=_used_percent, limit=100 * self.limit_fraction, hold_s=self.hold_s)

    def _bound_warn(self) -> Bound[GpuReading]:
        return Bound(value=_used_percent, limit=100 * self.warn_fraction, hold_s=0.0)

    def _choose_severity(self, history: History) -> Severity:
        known = bool(history.gpus_used) or len(history.readings_by_gpu()) == 1
        return Severity.acting(act=self.act if known else False)


def _observe_run(readings: Sequence[GpuReading], full: Bound[GpuReading], now: Moment) -> Observation:
    run = full.run(readings, now)
    return _observe_gpu(run[-1], f" for {lasted_s(run):.0f} s")


def _observe_gpu(reading: GpuReading, how_long: str) -> Observation:
    used, total, percent = reading.memory_used_bytes, reading.memory_total_bytes, _used_percent(reading)
    share = "" if percent is None or total is None else f" of {total / GB:.2f} GB ({percent:.0f}%)"
    return Observation(
        message=f"{reading.gpu}: VRAM at {(used or 0) / GB:.2f} GB{share}{how_long}",
        can_save=True,
        subject=reading.gpu,
        diagnosis=FULL,
    )


def _rank_fullness(reading: GpuReading | None) -> tuple[float, int]:
    return (-1.0, 0) if reading is None else (_used_percent(reading) or 0.0, reading.memory_used_bytes or 0)


def _is_known(reading: GpuReading) -> bool:
    return reading.memory_used_bytes is not None


def _used_bytes(reading: GpuReading) -> float | None:
    return reading.memory_used_bytes


def _used_percent(reading: GpuReading) -> float | None:
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    return 100 * used / total if used is not None and total else None


FULL = Diagnosis(
    causes=(
        "the batch or the image size is too large for the GPU [ultralytics/ultralytics#4679: lower it on a resume]",
        "another program holds a part of it: supervisorctl gpus shows each GPU's processes",
        "it grows: see vram_leak and fragmentation",
    ),
    advice=(
        "a smaller batch or imgsz; with ultralytics both may change on a resume",
        "amp=True takes about half of it",
    ),
)
