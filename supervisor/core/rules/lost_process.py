"""Lost process: one of several processes that train is gone while the others make steps.

When it warns. The agent named the process as one that makes steps, it is missing from the process tree, and it did
not report its end, or that an exception ended it. A rank that torchrun has reaped with a status or a signal, and
started again, is one too: the steps since its program's last save are made a second time. What ends by itself, what
its own program ends, loaders' workers, tools and pools are none of these. When it acts: where `act` says so. What the
others learned is not lost by itself, but their program may never notice: it may join the process without a look at
how it ended, and finish with less than was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from supervisor.core.attempt.agent_reports import Trainer
from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import measure_lasting
from supervisor.core.rules.dead_worker import find_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class LostProcess:
    """A process that made steps missing from every reading for `hold_s`, while others go on to make them."""

    name: ClassVar[str] = "lost_process"
    group: ClassVar[Group] = "steps"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: Act = False
    hold_s: float = 10.0

    def may_flag(self, history: History) -> bool:
        """Whether one of several processes that train is not among those that are alive."""
        return len(history.reports.trainers) > 1 and any(True for _ in _list_lost(history))

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long each process that was lost has been gone."""
        what = "a process that trains gone, while others make steps"
        if len(history.reports.trainers) < 2:
            return not_applicable(what, "it trains in one process")
        severity = Severity.acting(act=self.act)
        gone = tuple(self._measure_lost(history, *lost, severity) for lost in _list_lost(history))
        none = Gauge(what=what, unit="s", now=0.0, limit=self.hold_s, lacks="one that is gone", severity=severity)
        return gone or (none,)

    def _measure_lost(
        self, history: History, pid: int, trainer: Trainer, missing: tuple[ProcessReading, ...], severity: Severity
    ) -> Gauge:
        named = Gauge(
            what=f"process {pid}, which trained, gone",
            severity=severity,
            observe=partial(_observe_lost, history, pid, trainer, missing),
        )
        gauge = measure_lasting(history, missing, self.hold_s, named)
        stepped = _others_step(history, trainer, missing[0].at)
        return gauge if stepped else replace(gauge, lacks="steps that others made since")


def _list_lost(history: History) -> Iterator[tuple[int, Trainer, tuple[ProcessReading, ...]]]:
    """Yield each process that is gone and did not come to its own end, with the readings since it is gone."""
    newest = history.newest_processes
    if newest is None or newest.pids is None or history.over:
        return
    for pid, trainer in history.reports.trainers.items():
        if pid in newest.pids or (trainer.ended and not trainer.error):
            continue
        if missing := find_missing(history, pid, trainer.at):
            yield pid, trainer, missing


def find_lost_training(history: History) -> int | None:
    """Return the process that trained last where it is gone, none that trains is there, and its program is."""
    newest = history.newest_processes
    lost = [(trainer.at.monotonic_s, pid) for pid, trainer, _ in _list_lost(history)]
    if not lost or newest is None or not history.reports.trainers.keys().isdisjoint(newest.pids or ()):
        return None
    return max(lost)[1]


def _others_step(history: History, lost: Trainer, gone_at: Moment) -> bool:
    """Whether one that trained with it is there, or one that its launcher has started since, and a step was made."""
    there = set(history.processes[-1].pids or ())
    others = any(
        pid in there and (lost.restarts or gone_at.seconds_since(trainer.at) >= 0)
        for pid, trainer in history.reports.trainers.items()
    )
    return others and history.last_step_at is not None and history.last_step_at.seconds_since(gone_at) > 0


def _observe_lost(history: History, pid: int, trainer: Trainer, missing: tuple[ProcessReading, ...]) -> Observation:
    how = f"ended by {trainer.error}" if trainer.error else "was killed or crashed"
    rest = "its launcher started the training again" if trainer.restarts else "the others go on"
    return Observation(
        message=f"a process that trained (pid {pid}) {how} {history.lasted_s(missing):.0f} s ago, {rest}",
        subject=f"process {pid}",
        diagnosis=LOST,
    )


LOST = Diagnosis(
    ruled_out=(
        "not its own end: that is reported by its interpreter",
        "not ended by its program: multiprocessing reports what it terminates",
    ),
    causes=(
        "the kernel killed it for want of memory: look for oom-kill in its log [kernel, mm/oom_kill.c]",
        "it crashed in native code, or ended itself by os._exit [Python docs, os._exit]",
        "a program outside multiprocessing ended it by a signal, as schedulers of trials do",
    ),
    advice=("its output has the exception; act = true in rules.lost_process resumes them all from a checkpoint",),
)
