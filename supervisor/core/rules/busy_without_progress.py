"""Busy without progress: the GPUs are at full load and no step is made. A busy GPU alone is normal.

When it acts. Within a step two facts must hold together: every GPU of the job is at full load in every reading for
`hold_s`, and no step is made. Before the first step, or at a new shape, a kernel search looks the same, may take
minutes and end well: it warns after `search_s`, and the limits of `start_timeout` and `stall` apply. On a GPU for which
MIOpen is known to find no kernel, with Conv2d not replaced, it acts (recorded on 10 November: 99 % GPU use and 100 W,
no batch in eight minutes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.findings import FaultClass
from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.standstill import diagnosis_of, miopen_known_to_fail
from supervisor.core.stats.holds import run_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyWithoutProgress:
    """GPU use of at least `busy_percent` on every GPU for `hold_s`, `search_s` where kernels may be searched for."""

    name: ClassVar[str] = "busy_without_progress"
    group: ClassVar[Group] = "steps"
    cause: ClassVar[str] = causes.GPU_HANG
    enabled: bool = True
    act: Act = True
    busy_percent: float = 90.0
    hold_s: float = 45.0
    search_s: float = 120.0
    min_readings: int = 5

    def may_flag(self, history: History) -> bool:
        """Whether no step was made for the shorter of both limits, and no GPU is known not to be busy."""
        return history.without_step_s >= min(self.hold_s, self.search_s) and all(
            self._is_busy(readings[-1]) is not False for readings in history.readings_by_gpu().values()
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long every GPU has been at full load without a step."""
        what, no_step_s = "every GPU at full load, and no step", history.no_step_s
        why = _why_blind(history)
        if why is not None or no_step_s is None:
            return not_applicable(what, why or "its steps are not seen")
        runs = self._list_runs(history)
        return (
            Gauge(
                what=what,
                unit="s",
                now=min(no_step_s, *map(history.lasted_s, runs)),
                limit=self.search_s if _is_searching(history) else self.hold_s,
                lacks=None if min(map(len, runs)) >= self.min_readings else f"{self.min_readings} readings of it",
                severity=Severity.acting(act=self.act if _is_sure(history) else False),
                observe=partial(self._observe_load, history),
            ),
        )

    def _observe_load(self, history: History) -> Observation:
        searching = _is_searching(history)
        hold_s = self.search_s if searching else self.hold_s
        return Observation(
            message=f"every GPU at least {self.busy_percent:.0f} % busy for {hold_s:.0f} s, and no step for "
            f"{history.no_step_s:.0f} s" + (": a search for kernels that may never end" if searching else ""),
            fault=FaultClass.MIOPEN.value if searching and _is_sure(history) else None,
            diagnosis=diagnosis_of(history),
        )

    def _list_runs(self, history: History) -> list[tuple[GpuReading, ...]]:
        since = history.no_step_since() or history.launched_at
        return [self._find_run(readings, since, history.now) for readings in history.readings_by_gpu().values()]

    def _find_run(self, readings: Iterable[GpuReading], since: Moment, now: Moment) -> tuple[GpuReading, ...]:
        return run_of(readings, lambda reading: reading.at.seconds_since(since) >= 0 and self._is_busy(reading), now)

    def _is_busy(self, reading: GpuReading) -> bool | None:
        busy = reading.gpu_busy_percent
        return None if busy is None else busy >= self.busy_percent


def _why_blind(history: History) -> str | None:
    """Return why full load without a step would prove nothing; None where it would."""
    if (why := history.why_not_stepping() or history.why_no_gpu_readings()) is not None:
        return why
    if not history.hooked:
        return "its steps are not seen"
    if history.training_stage not in (None, Stage.SETUP, Stage.WARMUP, Stage.STEP, Stage.COMPILE):
        return "no step is due"
    if any(gpu not in history.gpus for gpu in history.gpus_used):
        return "a GPU of the job is not read"
    if not history.gpus_used and len(history.gpus) > 1:
        return "its GPUs are not known: another job's load could be taken for its own"
    return None


def _is_searching(history: History) -> bool:
    """Whether full load without a step is also what a search for kernels looks like."""
    return history.starting or history.stage is Stage.COMPILE or history.switching


def _is_sure(history: History) -> bool:
    return miopen_known_to_fail(history) if _is_searching(history) else history.stages_complete
