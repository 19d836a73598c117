"""Host memory: the machine runs out of it. It stops only a job whose end would give a real share of it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import HostReading, ProcessReading
from supervisor.core.series import lasted_s, newest_of, run_of
from supervisor.core.watched import Watched


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Available memory below `warn_fraction` of all is told; below `limit_fraction` for `hold_s` acts.

    It acts only where the job's processes hold at least `min_share` of all memory; if less, or if unknown, it tells.
    """

    name: ClassVar[str] = "host_memory"
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
        full = run_of(history.host, lambda one: _below(one, self.limit_fraction), history.now)
        if len(full) > 1 and lasted_s(full) >= self.hold_s:
            share = _share(history, full[-1])
            ours = share is not None and share >= self.min_share
            held = "an unknown share" if share is None else f"{share:.0%}"
            return self._flag(
                history, full[-1], Severity.acting(act=self.act and ours), f", of which the job holds {held}"
            )
        low = run_of(history.host, lambda one: _below(one, self.warn_fraction), history.now)
        return self._flag(history, low[-1], Severity.WARNING, "") if low else None

    def watch(self, history: History) -> Watched | None:
        """Return how much of the machine's memory is left."""
        what = "memory of the machine that is left"
        newest = newest_of(history.host, lambda one: _below(one, 1.0) is not None, history.now)
        if newest is None or not newest.memory_total_bytes or history.over:
            return Watched(rule=self.name, what=what, not_watched="no reading of the machine's memory")
        limit = self.limit_fraction * newest.memory_total_bytes
        now = newest.memory_available_bytes
        return Watched(rule=self.name, what=what, unit="bytes", now=now, limit=limit, below=True)

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


def _below(reading: HostReading, fraction: float) -> bool | None:
    available, total = reading.memory_available_bytes, reading.memory_total_bytes
    return available < total * fraction if available is not None and total else None


def _share(history: History, host: HostReading) -> float | None:
    newest = newest_of(history.processes, _is_known, history.now)
    rss = newest.rss_bytes if newest else None
    return rss / host.memory_total_bytes if rss is not None and host.memory_total_bytes else None


def _is_known(reading: ProcessReading) -> bool | None:
    return None if reading.rss_bytes is None else True


SHORT = Diagnosis(
    causes=(
        "the data set is cached in memory, once or in each loader worker [pytorch/pytorch#13246]",
        "another program of the machine: what the job holds stands in the message",
    ),
    advice=("fewer workers, cache=disk in place of cache=ram; at the end the kernel kills the largest process",),
)
