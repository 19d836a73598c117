"""GPU idle: every GPU of the job is idle and no step is made. Neither of the two proves anything alone.

When it acts. Both hold while the agent reports that a step is due. While it waits for its batch an idle GPU is
expected, so a third fact is needed: every process of the job is idle too, so that none reads what it waits for. Where
not every stage is reported (a script may upload its results between two steps), where the machine is short of memory,
or where the training sleeps by a timer or waits for the answer of a server, it warns after `hold_s` and acts after
twice that time, or later where an attempt was stopped for silence after the same step before, as in `stall`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, ProcessReading, Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.known_silences import is_silent_again, lengthen_limit_s
from supervisor.core.rules.rest import awaits_outside
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps
from supervisor.core.stats.holds import run_of

DOUBT = 2
AGAIN_AT_MOST_S = 3600.0
RESTS_CPU_PERCENT = 3.0
"""Of one processor, all processes of the job together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdle:
    """GPU use at most `idle_percent` on every GPU in each of at least `min_readings` over `hold_s`, and no step.

    Only while batches are due (stage step, or warmup after the first step): a validation or a checkpoint may leave the
    GPU idle. A suspended GPU and a sensor without a value are unknown. A slow data loader makes steps.
    """

    name: ClassVar[str] = "gpu_idle"
    group: ClassVar[Group] = "steps"
    cause: ClassVar[str] = causes.STALL_DATA
    enabled: bool = True
    act: Act = True
    idle_percent: float = 1.0
    hold_s: float = 30.0
    min_readings: int = 3

    def may_flag(self, history: History) -> bool:
        """Whether no step was made for `hold_s`, and no GPU is known to be busy."""
        return history.without_step_s >= self.hold_s and all(
            self._is_idle(readings[-1]) is not False for readings in history.readings_by_gpu().values()
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long every GPU has idled without a step, and every process where that must agree."""
        waits = history.stage is Stage.DATA_WAIT
        what = "every GPU and process idle, and no step" if waits else "every GPU idle, and no step"
        if (why := _why_blind(history)) is not None:
            return not_applicable(what, why)
        runs = tuple(self._list_witnesses(history))
        return (
            Gauge(
                what=what,
                unit="s",
                now=min(history.without_step_s, *map(history.lasted_s, runs)),
                limit=self.hold_s,
                lacks=None if min(map(len, runs)) >= self.min_readings else f"{self.min_readings} readings of it",
                severity=self._choose_severity(history),
                observe=partial(self._observe_idle, history),
            ),
        )

    def _observe_idle(self, history: History) -> Observation:
        return Observation(
            message=f"{', '.join(sorted(history.readings_by_gpu()))}: at most {self.idle_percent:g} % busy "
            f"for {self.hold_s:.0f} s, and no step for {history.no_step_s:.0f} s",
            diagnosis=diagnosis_of(history),
        )

    def _choose_severity(self, history: History) -> Severity:
        doubtful = not history.stages_complete or machine_gasps(history) or awaits_outside(history)
        again = is_silent_again(history)
        limit_s = lengthen_limit_s(history, self.hold_s * (DOUBT if doubtful else 1), AGAIN_AT_MOST_S)
        sure = not (doubtful or again) or history.without_step_s >= limit_s
        return Severity.acting(act=self.act if sure else False)

    def _list_witnesses(self, history: History) -> Iterator[tuple[GpuReading, ...] | tuple[ProcessReading, ...]]:
        """Yield the runs that have to last: of idle processes while it waits for data, and of each idle GPU."""
        since = history.no_step_since() or history.launched_at
        if history.stage is Stage.DATA_WAIT:
            yield run_of(
                history.processes,
                lambda process: process.at.seconds_since(since) >= 0 and _is_resting(process),
                history.now,
            )
        for readings in history.readings_by_gpu().values():
            yield self._find_run(readings, since, history.now)

    def _find_run(self, readings: Iterable[GpuReading], since: Moment, now: Moment) -> tuple[GpuReading, ...]:
        return run_of(readings, lambda reading: reading.at.seconds_since(since) >= 0 and self._is_idle(reading), now)

    def _is_idle(self, reading: GpuReading) -> bool | None:
        busy = reading.gpu_busy_percent
        if busy is None or not math.isfinite(busy) or reading.runtime_status not in (None, "active"):
            return None
        return busy <= self.idle_percent


def _why_blind(history: History) -> str | None:
    """Return why an idle GPU without a step would prove nothing; None where it would."""
    if (why := history.why_not_stepping() or history.why_no_gpu_readings()) is not None:
        return why
    if not history.hooked or history.no_step_since() is None:
        return "its steps are not seen"
    if history.starting or history.stage not in (Stage.STEP, Stage.WARMUP, Stage.DATA_WAIT):
        return "no step is due"
    if any(gpu not in history.gpus for gpu in history.gpus_used):
        return "a GPU of the job is not read"
    return None


def _is_resting(reading: ProcessReading) -> bool | None:
    return None if reading.cpu_percent is None else reading.cpu_percent <= RESTS_CPU_PERCENT
