"""GPU idle: every card of the job idles and no step is made. Neither of the two says anything alone.

What is proof. Both together, while the agent says that a step is due. While it waits for its batch an idle card is to
be expected, so a third must agree: every process of the job idles too, and nobody reads what it waits for. Where not
every stage is told (a script may upload its results between two steps), or where the machine gasps for memory, both
are told after `hold_s` and act after twice that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, ProcessReading, Stage
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps
from supervisor.core.series import lasted_s, run_of
from supervisor.core.watched import Watched

DOUBT = 2
RESTS_CPU_PERCENT = 3.0
"""Of one processor, all processes of the job together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdle:
    """GPU use at most `idle_percent` on every card in each of at least `min_readings` over `hold_s`, and no step.

    Only while batches are due (stage step, or warmup once it has stepped): a validation or a checkpoint may leave the
    card idle. A card that is suspended, or a sensor that is silent, says nothing. A slow data loader makes steps.
    """

    name: ClassVar[str] = "gpu_idle"
    enabled: bool = True
    act: Act = True
    idle_percent: float = 1.0
    hold_s: float = 30.0
    min_readings: int = 3

    def check(self, history: History) -> RedFlag | None:
        """Flag cards that idle since the last step."""
        since = history.quiet_since()
        if history.over or history.train_ended or history.starting or not history.hooked or since is None:
            return None
        if history.stage not in (Stage.STEP, Stage.WARMUP, Stage.DATA_WAIT) or (history.quiet_s or 0.0) < self.hold_s:
            return None
        if history.stage is Stage.DATA_WAIT and not self._nobody_reads(history, since):
            return None
        cards = history.readings_by_gpu()
        if not cards or any(gpu not in cards for gpu in history.gpus_used):
            return None
        if not all(self._idles(readings, since, history.now) for readings in cards.values()):
            return None
        doubtful = not history.whole or machine_gasps(history)
        sure = not doubtful or (history.quiet_s or 0.0) >= DOUBT * self.hold_s
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act if sure else False),
            at=history.now,
            message=f"{', '.join(sorted(cards))}: at most {self.idle_percent:g} % busy for {self.hold_s:.0f} s, "
            f"and no step for {history.quiet_s:.0f} s",
            diagnosis=diagnosis_of(history),
        )

    def watch(self, history: History) -> Watched | None:
        """Return how long every card has idled without a step."""
        what, cards, since = "every card idle, and no step", history.readings_by_gpu(), history.quiet_since()
        if not cards or history.over or history.starting or since is None or not history.hooked:
            why = "no reading of its cards" if not cards else "no step is due"
            return Watched(rule=self.name, what=what, unit="s", not_watched=why)
        runs = [self._run(readings, since, history.now) for readings in cards.values()]
        return Watched(rule=self.name, what=what, unit="s", now=min(map(lasted_s, runs)), limit=self.hold_s)

    def _nobody_reads(self, history: History, since: Moment) -> bool:
        idle = run_of(history.processes, lambda one: one.at.seconds_since(since) >= 0 and _rests(one), history.now)
        return len(idle) >= self.min_readings and lasted_s(idle) >= self.hold_s

    def _idles(self, readings: Iterable[GpuReading], since: Moment, now: Moment) -> bool:
        run = self._run(readings, since, now)
        return len(run) >= self.min_readings and lasted_s(run) >= self.hold_s

    def _run(self, readings: Iterable[GpuReading], since: Moment, now: Moment) -> tuple[GpuReading, ...]:
        return run_of(readings, lambda one: one.at.seconds_since(since) >= 0 and self._is_idle(one), now)

    def _is_idle(self, reading: GpuReading) -> bool | None:
        busy = reading.gpu_busy_percent
        if busy is None or not math.isfinite(busy) or reading.runtime_status not in (None, "active"):
            return None
        return busy <= self.idle_percent


def _rests(reading: ProcessReading) -> bool | None:
    return None if reading.cpu_percent is None else reading.cpu_percent <= RESTS_CPU_PERCENT
