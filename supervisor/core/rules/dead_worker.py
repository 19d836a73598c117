"""Dead worker: a loader's process or a rank is gone while the training waits for it. Gone and stepping is no fault.

Proof for acting, all three: the agent named the worker and never said that it was let go, it is missing from the
process tree, and no step was made since. A loader whose workers each have an end of their own is left out. A rank may
have come to its end and left another to finish up: that is only told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import ProcessReading, Stage
from supervisor.core.series import FRESH_S, lasted_s, run_of

WORKER = "a data loader worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadWorker:
    """A worker or rank missing from every reading for `hold_s`, while batches are due and none is made."""

    name: ClassVar[str] = "dead_worker"
    enabled: bool = True
    act: Act = True
    hold_s: float = 20.0

    def check(self, history: History) -> RedFlag | None:
        """Flag the first that is gone."""
        quiet = history.quiet_since()
        if history.over or history.train_ended or quiet is None or history.stage not in (Stage.STEP, Stage.DATA_WAIT):
            return None
        if history.now.seconds_since(quiet) < self.hold_s or not history.processes:
            return None
        newest = history.processes[-1]
        if newest.pids is None or history.now.seconds_since(newest.at) > FRESH_S:
            return None
        there = set(newest.pids)
        for what, pid in (*_workers(history, there), *_ranks(history, there)):
            missing = run_of(history.processes, partial(_lacks, pid=pid), history.now)
            if len(missing) > 1 and lasted_s(missing) >= self.hold_s:
                return self._flag(history, what, pid, missing)
        return None

    def _flag(self, history: History, what: str, pid: int, missing: tuple[ProcessReading, ...]) -> RedFlag:
        quiet = history.quiet_since() or history.now
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act and history.hooked and what == WORKER),
            at=history.now,
            message=f"{what} (pid {pid}) is gone for {lasted_s(missing):.0f} s and no step was made for "
            f"{history.now.seconds_since(quiet):.0f} s",
            subject=what,
            diagnosis=GONE,
        )


def _workers(history: History, there: set[int]) -> Iterator[tuple[str, int]]:
    for loader in history.told.loaders.values():
        # With its parent a loader is gone as a whole, which is not its workers' fault.
        if loader.finite and (loader.parent is None or loader.parent in there):
            yield from ((WORKER, pid) for pid in loader.pids if pid not in there)


def _ranks(history: History, there: set[int]) -> Iterator[tuple[str, int]]:
    ranks = history.told.rank_pids
    if there.intersection(ranks.values()):
        yield from ((f"rank {rank}", pid) for rank, pid in ranks.items() if pid not in there)


def _lacks(reading: ProcessReading, pid: int) -> bool | None:
    return None if reading.pids is None else pid not in reading.pids


GONE = Diagnosis(
    ruled_out=(
        "not the end of an epoch: the loader did not let it go",
        "not a slow batch: what would deliver it is not there",
    ),
    causes=(
        "the kernel killed it for want of memory: look for oom-kill in its log [kernel, mm/oom_kill.c]",
        "it crashed in an image decoder or a library that does not stand a fork [PyTorch docs, multiprocessing]",
        "shared memory is full: /dev/shm of a container is 64 MB [PyTorch README, shm-size]",
    ),
    advice=("fewer workers, or workers=0; more /dev/shm; persistent_workers=False",),
)
