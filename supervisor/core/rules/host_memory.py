"""Host memory: the machine runs out of it. It stops only a job whose end would give a real share of it back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.readings import HostReading, ProcessReading
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import Bound
from supervisor.core.stats.holds import newest_of
from supervisor.core.unseen import ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Available memory below `warn_fraction` of all is told; below `limit_fraction` for `hold_s` acts.

    It acts only where the job's processes hold at least `min_share` of all memory; if less, or if unknown, it tells.
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

    def check(self, history: History) -> RedFlag | None:
        """Flag memory that is nearly used up."""
        if history.over:
            return None
        low, short = self._told(), self._full()
        full = short.run(history.host, history.now)
        if short.held(full):
            share = _share(history, full[-1])
            held = "an unknown share" if share is None else f"{share:.0%}"
            return self._flag(history, full[-1], self._severity(share), f", of which the job holds {held}")
        run = low.run(history.host, history.now)
        return self._flag(history, run[-1], Severity.WARNING, "") if run else None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how much of the machine's memory is left."""
        what = "memory of the machine that is left"
        newest = newest_of(history.host, lambda reading: _left_percent(reading) is not None, history.now)
        if newest is None or history.over:
            return unwatched(self.name, what, ENDED if history.over else "no reading of the machine's memory")
        full = self._full().run(history.host, history.now)
        severity = self._severity(_share(history, full[-1] if full else newest))
        named = Gauge(rule=self.name, what=what, unit="%")
        told = replace(self._told().watched(history.host, history.now, named), hold_s=None)
        return told, self._full().watched(history.host, history.now, replace(named, severity=severity))

    def _told(self) -> Bound[HostReading]:
        return Bound(value=_left_percent, limit=100 * self.warn_fraction, hold_s=0.0, below=True, strict=True)

    def _full(self) -> Bound[HostReading]:
        limit = 100 * self.limit_fraction
        return Bound(value=_left_percent, limit=limit, hold_s=self.hold_s, below=True, strict=True)

    def _severity(self, share: float | None) -> Severity:
        return Severity.acting(act=self.act if share is not None and share >= self.min_share else False)

    def _flag(self, history: History, reading: HostReading, severity: Severity, holder: str) -> RedFlag:
        available, total = reading.memory_available_bytes or 0, reading.memory_total_bytes or 0
        return RedFlag(
            rule=self.name,
            severity=severity,
            at=history.now,
            message=f"{available / 1e9:.2f} of {total / 1e9:.2f} GB of memory are left{holder}",
            can_save=True,
            diagnosis=SHORT,
        )


def _left_percent(reading: HostReading) -> float | None:
    available, total = reading.memory_available_bytes, reading.memory_total_bytes
    return 100 * available / total if available is not None and total else None


def _share(history: History, host: HostReading) -> float | None:
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
