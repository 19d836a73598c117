"""Host memory slope: the job's processes take more and more of the machine. `host_memory` speaks when it is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.series import FRESH_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemorySlope:
    """The slope over `over_s` is above 0 with 99.9 % confidence, and what is available is gone within `gone_within_s`.

    In that time it must have risen by `min_rise_fraction` of the machine's memory. It tells by default: a data set that
    is being cached looks like this until it is in.
    """

    name: ClassVar[str] = "host_memory_slope"
    enabled: bool = True
    act: Act = False
    over_s: float = 3600.0
    gone_within_s: float = 10800.0
    min_rise_fraction: float = 0.02

    def check(self, history: History) -> RedFlag | None:
        """Flag memory that leaks into the job."""
        host = next((one for one in reversed(history.host) if one.memory_available_bytes is not None), None)
        if history.over or host is None or history.now.seconds_since(host.at) > FRESH_S:
            return None
        available, total = host.memory_available_bytes, host.memory_total_bytes
        slope = history.rss.slope(self.over_s)
        if slope is None or available is None or not total or not slope.low_per_s > 0:
            return None
        left_s = available / slope.per_s
        if slope.rise < self.min_rise_fraction * total or left_s > self.gone_within_s:
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"the job's memory rises by {slope.per_s * 3600 / 1e9:.2f} GB/h, {available / 1e9:.2f} of "
            f"{total / 1e9:.2f} GB are left, gone in {left_s / 3600:.1f} h",
            can_save=True,
            diagnosis=GROWTH,
        )


GROWTH = Diagnosis(
    ruled_out=("not a peak: what each minute needs least is rising",),
    causes=(
        "Python lists in the data set, copied page by page into each loader worker [pytorch/pytorch#13246]",
        "a data set being cached in memory: it levels off when it is in [ultralytics docs, cache=ram]",
        "results or losses collected for the whole run [ultralytics/ultralytics#14150]",
    ),
    advice=("fewer workers, arrays in place of lists in the data set, cache=disk in place of cache=ram",),
)
