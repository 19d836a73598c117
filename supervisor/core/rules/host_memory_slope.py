"""Host memory slope: the memory of the job's processes rises steadily; `host_memory` flags when none is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import is_running_out, measure_running_out
from supervisor.core.stats.holds import newest_of
from supervisor.core.stats.trend import WINDOW_S, Slope
from supervisor.core.units import GB, HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemorySlope:
    """The slope over `window_s` is above 0 with 99.9 % confidence and memory would run out within `gone_within_s`.

    In that time it must have risen by `min_rise_fraction` of the machine's memory. It warns by default: a data set that
    is being cached looks like this until it is complete.
    """

    name: ClassVar[str] = "host_memory_slope"
    group: ClassVar[Group] = "memory"
    cause: ClassVar[str] = causes.OOM_HOST
    enabled: bool = True
    act: Act = False
    window_s: float = field(default=3600.0, metadata={"between": WINDOW_S})
    gone_within_s: float = 10800.0
    min_rise_fraction: float = 0.02

    def may_flag(self, history: History) -> bool:
        """Whether memory would run out within the limit."""
        slope = None if history.over else history.rss.slope(self.window_s)
        memory = None if slope is None else _read_memory(history)
        return memory is not None and is_running_out(slope, memory[0], self.gone_within_s)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return when memory would be gone at the rate at which the job takes it."""
        what = f"time until memory is gone, at the job's rate of {self.window_s:.0f} s"
        memory, slope = _read_memory(history), history.rss.slope(self.window_s)
        if history.over or memory is None:
            return not_applicable(what, ATTEMPT_ENDED if history.over else "no reading of the machine's memory")
        available, total = memory
        named = Gauge(
            what=what,
            severity=Severity.acting(act=self.act),
            observe=None if slope is None else partial(_observe_growth, slope, available, total),
        )
        least_rise = self.min_rise_fraction * total
        return (measure_running_out(named, slope, available, within_s=self.gone_within_s, least_rise=least_rise),)


def _observe_growth(slope: Slope, available: int, total: int) -> Observation:
    left_h = (slope.left_s(available) or 0.0) / HOUR_S
    return Observation(
        message=f"the job's memory rises by {slope.per_s * HOUR_S / GB:.2f} GB/h, {available / GB:.2f} of "
        f"{total / GB:.2f} GB are left, gone in {left_h:.1f} h",
        can_save=True,
        diagnosis=GROWTH,
    )


def _read_memory(history: History) -> tuple[int, int] | None:
    """Return the available and the total memory of the machine in bytes; None where no new reading has both."""
    newest = newest_of(history.host, lambda reading: reading.memory_available_bytes is not None, history.now)
    if newest is None or newest.memory_available_bytes is None or not newest.memory_total_bytes:
        return None
    return newest.memory_available_bytes, newest.memory_total_bytes


GROWTH = Diagnosis(
    ruled_out=("not a peak: what each minute needs least is rising",),
    causes=(
        "Python lists in the data set, copied page by page into each loader worker [pytorch/pytorch#13246]",
        "a data set being cached in memory: it levels off when it is in [ultralytics docs, cache=ram]",
        "results or losses collected for the whole run [ultralytics/ultralytics#14150]",
    ),
    advice=("fewer workers, arrays in place of lists in the data set, cache=disk in place of cache=ram",),
)
