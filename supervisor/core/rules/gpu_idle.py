"""GPU idle: every card of the job idles and no step is made. Neither of the two says anything alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, Stage
from supervisor.core.series import lasted_s, run_of


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
        if history.stage not in (Stage.STEP, Stage.WARMUP) or history.now.seconds_since(since) < self.hold_s:
            return None
        cards = history.readings_by_gpu()
        if not cards or any(gpu not in cards for gpu in history.gpus_used):
            return None
        if not all(self._idles(readings, since, history.now) for readings in cards.values()):
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"{', '.join(sorted(cards))}: at most {self.idle_percent:g} % busy for {self.hold_s:.0f} s, "
            f"and no step for {history.now.seconds_since(since):.0f} s",
        )

    def _idles(self, readings: Iterable[GpuReading], since: Moment, now: Moment) -> bool:
        run = run_of((one for one in readings if one.at.seconds_since(since) >= 0), self._is_idle, now)
        return len(run) >= self.min_readings and lasted_s(run) >= self.hold_s

    def _is_idle(self, reading: GpuReading) -> bool | None:
        busy = reading.gpu_busy_percent
        if busy is None or not math.isfinite(busy) or reading.runtime_status not in (None, "active"):
            return None
        return busy <= self.idle_percent
