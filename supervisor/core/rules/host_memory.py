"""Host memory: the machine runs out of it. A job is stopped only where that would free a real share of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History
from supervisor.core.readings import HostReading, ProcessReading
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import Bound
from supervisor.core.stats.holds import newest_of
from supervisor.core.units import GB


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Available memory below `warn_fraction` of all is a warning; below `limit_fraction` for `hold_s` acts.

    It acts only where the job's processes hold at least `min_share` of all memory; if less, or if unknown, it warns.
    """

    name: ClassVar[str] = "host_memory"
    group: ClassVar[Group] = "memory"
    cause: ClassVar[str] = causes.OOM_HOST
    enabled: bool = True
    act: Act = True
    warn_fraction: float = 0.10
    limit_fraction: float = 0.03
    hold_s: float = 10.0
    min_share: float = 0.25

    def may_flag(self, history: History) -> bool:
        """Whether the newest reading of the machine is below the higher limit."""
        higher = self._bound_left(max(self.warn_fraction, self.limit_fraction))
        return not history.over and higher.may_be_reached(history.host)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how much of the machine's memory is left."""
        what = "memory of the machine that is left"
        newest = newest_of(history.host, lambda reading: _left_percent(reading) is not None, history.now)
        if newest is None or history.over:
            return not_applicable(what, ATTEMPT_ENDED if history.over else "no reading of the machine's memory")
        low, short = self._bound_left(self.warn_fraction, hold_s=0.0), self._bound_left(self.limit_fraction)
        full = short.run(history.host, history.now)
        share = _read_share(history, full[-1] if full else newest)
        held = "an unknown share" if share is None else f"{share:.0%}"
        acts = Gauge(
            what=what,
            unit="%",
            severity=Severity.acting(act=self.act if share is not None and share >= self.min_share else False),
            observe=lambda: _observe_memory(full[-1], f", of which the job holds {held}"),
        )
        warns = Gauge(what=what, unit="%", observe=lambda: _observe_memory(newest, ""))
        below = low.measure(history.host, history.now, warns)
        return short.measure(history.host, history.now, acts), replace(below, hold_s=None)

    def _bound_left(self, fraction: float, hold_s: float | None = None) -> Bound[HostReading]:
        held_s = self.hold_s if hold_s is None else hold_s
        return Bound(value=_left_percent, limit=100 * fraction, hold_s=held_s, below=True, strict=True)


def _observe_memory(reading: HostReading, holder: str) -> Observation:
    available, total = reading.memory_available_bytes or 0, reading.memory_total_bytes or 0
    return Observation(
        message=f"{available / GB:.2f} of {total / GB:.2f} GB of memory are left{holder}",
        can_save=True,
        diagnosis=SHORT,
    )


def _left_percent(reading: HostReading) -> float | None:
    available, total = reading.memory_available_bytes, reading.memory_total_bytes
    return 100 * available / total if available is not None and total else None


def _read_share(history: History, host: HostReading) -> float | None:
    newest = newest_of(history.processes, _is_known, history.now)
    rss = newest.rss_bytes if newest else None
    return rss / host.memory_total_bytes if rss is not None and host.memory_total_bytes else None


def _is_known(reading: ProcessReading) -> bool | None:
    return None if reading.rss_bytes is None else True


SHORT = Diagnosis(
    causes=(
        "the data set is cached in memory, once or in each loader worker [pytorch/pytorch#13246]",
        "another program on the machine: the message shows how much the job holds",
    ),
    advice=("fewer workers, cache=disk in place of cache=ram; at the end the kernel kills the largest process",),
)
