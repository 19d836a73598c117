"""Busy without progress: the cards work at full load and no step comes. A busy card alone is health.

What is proof. Inside a step two signals agree: every card of the job is at full load in every reading for `hold_s`,
and no step is made. Before the first step, or at a new shape, that is also what a search for kernels looks like, which
may take minutes and end well: it is told after `search_s`, with what it most likely is, and the doubt ends with the
limits of `start_timeout` and `stall`. Where the card is one on which MIOpen is known to find no kernel and Conv2d was
not replaced, that knowledge is the second witness, and it acts (the owner's log: 99 % GPU and 100 W, no batch in
eight minutes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import FaultClass, GpuReading, Stage
from supervisor.core.rules.standstill import diagnosis_of, miopen_known_to_fail
from supervisor.core.series import lasted_s, run_of
from supervisor.core.watched import Watched


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyWithoutProgress:
    """GPU use of at least `busy_percent` on every card for `hold_s`, `search_s` where kernels may be searched for."""

    name: ClassVar[str] = "busy_without_progress"
    enabled: bool = True
    act: Act = True
    busy_percent: float = 90.0
    hold_s: float = 45.0
    search_s: float = 120.0
    min_readings: int = 5

    def check(self, history: History) -> RedFlag | None:
        """Flag cards that work at full load while no step is made."""
        since, quiet_s = _since(history), history.quiet_s
        if history.over or history.train_ended or not history.hooked:
            return None
        searching = history.starting or history.stage is Stage.COMPILE
        hold_s = self.search_s if searching else self.hold_s
        if history.stage not in (None, Stage.SETUP, Stage.WARMUP, Stage.STEP, Stage.COMPILE):
            return None
        if quiet_s is None or quiet_s < hold_s or not self._all_busy(history, since, hold_s):
            return None
        sure = history.whole and not searching if not searching else miopen_known_to_fail(history)
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act if sure else False),
            at=history.now,
            message=f"every card at least {self.busy_percent:.0f} % busy for {hold_s:.0f} s, and no step for "
            f"{quiet_s:.0f} s" + (": a search for kernels that may never end" if searching else ""),
            fault=FaultClass.MIOPEN.value if searching and sure else None,
            diagnosis=diagnosis_of(history),
        )

    def watch(self, history: History) -> Watched | None:
        """Return how long every card has been at full load without a step."""
        what = "every card at full load, and no step"
        cards = history.readings_by_gpu()
        if not cards or history.over or not history.hooked:
            why = "no reading of its cards" if not cards else "its steps are not seen"
            return Watched(rule=self.name, what=what, unit="s", not_watched=why)
        searching = history.starting or history.stage is Stage.COMPILE
        runs = [lasted_s(self._run(readings, _since(history), history.now)) for readings in cards.values()]
        limit_s = self.search_s if searching else self.hold_s
        return Watched(rule=self.name, what=what, unit="s", now=min(runs), limit=limit_s)

    def _all_busy(self, history: History, since: Moment, hold_s: float) -> bool:
        cards = history.readings_by_gpu()
        if not cards or any(gpu not in cards for gpu in history.gpus_used):
            return False
        if not history.gpus_used and len(cards) > 1:
            return False  # nobody knows on which of them it runs: another's load would speak for it
        runs = [self._run(readings, since, history.now) for readings in cards.values()]
        return all(len(run) >= self.min_readings and lasted_s(run) >= hold_s for run in runs)

    def _run(self, readings: Iterable[GpuReading], since: Moment, now: Moment) -> tuple[GpuReading, ...]:
        return run_of(readings, lambda one: one.at.seconds_since(since) >= 0 and self._is_busy(one), now)

    def _is_busy(self, reading: GpuReading) -> bool | None:
        busy = reading.gpu_busy_percent
        return None if busy is None else busy >= self.busy_percent


def _since(history: History) -> Moment:
    return history.quiet_since() or history.launched_at
