"""Dead worker: a loader's process or a rank is gone while the training waits for it.

When it acts. Three facts: the agent named the worker and did not report its end, it is missing from the process tree,
and no step was made since. A loader whose workers each end on their own is left out. A rank may have ended normally and
left another to finish: that is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading, Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import measure_lasting
from supervisor.core.stats.holds import FRESH_S, run_of

WORKER = "a data loader worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadWorker:
    """A worker or rank missing from every reading for `hold_s`, while batches are due and none is made."""

    name: ClassVar[str] = "dead_worker"
    group: ClassVar[Group] = "steps"
    cause: ClassVar[str] = causes.LOADER
    enabled: bool = True
    act: Act = True
    hold_s: float = 20.0

    def may_flag(self, history: History) -> bool:
        """Whether the processes are listed and no step was made for `hold_s`."""
        newest = history.newest_processes
        return newest is not None and newest.pids is not None and history.without_step_s >= self.hold_s

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long each worker that is gone has been gone."""
        what = "a loader's worker or a rank gone, and no step"
        if (why := _why_blind(history)) is not None:
            return not_applicable(what, why)
        gone = tuple(self._measure_missing(history, *row) for row in _list_missing(history))
        none = Gauge(
            what=what,
            unit="s",
            now=0.0,
            limit=self.hold_s,
            lacks="one that is gone",
            severity=self._choose_severity(history, WORKER),
        )
        return gone or (none,)

    def _measure_missing(self, history: History, who: str, pid: int, missing: tuple[ProcessReading, ...]) -> Gauge:
        named = Gauge(
            what=f"{who} gone (pid {pid})",
            severity=self._choose_severity(history, who),
            observe=partial(_observe_missing, history, who, pid, missing),
        )
        waited_for = history.has_lasted(missing, 0.0) and history.without_step_s >= self.hold_s
        gauge = measure_lasting(history, missing, self.hold_s, named)
        return replace(gauge, lacks=None if waited_for else "no step for as long")

    def _choose_severity(self, history: History, who: str) -> Severity:
        return Severity.acting(act=self.act and history.hooked and who == WORKER)


def _observe_missing(history: History, who: str, pid: int, missing: tuple[ProcessReading, ...]) -> Observation:
    return Observation(
        message=f"{who} (pid {pid}) is gone for {history.lasted_s(missing):.0f} s and no step was made for "
        f"{history.without_step_s:.0f} s",
        subject=who,
        diagnosis=GONE,
    )


def _why_blind(history: History) -> str | None:
    """Return why it is not known whether a worker is missing and waited for; None where it is."""
    if (why := history.why_not_stepping()) is not None:
        return why
    if history.no_step_since() is None or history.stage not in (Stage.STEP, Stage.DATA_WAIT):
        return "no batch is due"
    if is_ending_by_exception(history):
        return "an exception ends the training, and its workers with it"
    newest = history.newest_processes
    if newest is None or newest.pids is None or history.now.seconds_since(newest.at) > FRESH_S:
        return "no reading of its processes"
    return None


def is_ending_by_exception(history: History) -> bool:
    """Whether a process that is no worker raised what ends it, after the last step: its workers go with it."""
    workers = {pid for loader in history.reports.loaders.values() for pid in loader.pids}
    no_step_s = _quiet_s(history)
    return any(raised.pid not in workers and history.seconds_since(raised.at) <= no_step_s for raised in history.raised)


def _quiet_s(history: History) -> float:
    return history.seconds_since(history.no_step_since() or history.now)


def _list_missing(history: History) -> Iterator[tuple[str, int, tuple[ProcessReading, ...]]]:
    """Yield what is not in the newest reading of the process tree, and the readings since it is not."""
    there = set(history.processes[-1].pids or ())
    for what, pid, since in (*_list_workers(history, there), *_list_ranks(history, there)):
        if missing := find_missing(history, pid, since):
            yield what, pid, missing


def _list_workers(history: History, there: set[int]) -> Iterator[tuple[str, int, Moment | None]]:
    """Yield each worker that is not there, and when it was reported: readings before that do not have it yet."""
    for loader in history.reports.loaders.values():
        # With its parent the entire loader is gone, which is not its workers' fault.
        if loader.finite and (loader.parent is None or loader.parent in there):
            yield from ((WORKER, pid, loader.at) for pid in loader.pids if pid not in there)


def _list_ranks(history: History, there: set[int]) -> Iterator[tuple[str, int, Moment | None]]:
    ranks = history.reports.rank_pids
    if there.intersection(ranks.values()):
        yield from ((f"rank {rank}", pid, None) for rank, pid in ranks.items() if pid not in there)


def find_missing(history: History, pid: int, since: Moment | None) -> tuple[ProcessReading, ...]:
    """Return the newest readings in a row that lack a process, none from before it was reported, at `since`."""

    def is_missing(reading: ProcessReading) -> bool | None:
        if since is not None and reading.at.seconds_since(since) <= 0:
            return False
        return None if reading.pids is None else pid not in reading.pids

    return run_of(history.processes, is_missing, history.now)


GONE = Diagnosis(
    ruled_out=(
        "not the end of an epoch: the loader did not let it go",
        "not a slow batch: what would deliver it is not there",
    ),
    causes=(
        "the kernel killed it for want of memory: look for oom-kill in its log [kernel, mm/oom_kill.c]",
        "it crashed in an image decoder or a library that is not fork-safe [PyTorch docs, multiprocessing]",
        "shared memory is full: /dev/shm of a container is 64 MB [PyTorch README, shm-size]",
    ),
    advice=("fewer workers, or workers=0; more /dev/shm; persistent_workers=False",),
)
