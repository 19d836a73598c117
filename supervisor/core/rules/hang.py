"""Hang: the training is alive and no signal reaches it. It sends none to find out.

What is proof. Two things that must hold together. No step comes, while the agent says that a step is what it is in.
And one and the same process waits in the kernel (state D) in every reading for `hold_s` without having run once: a
signal is taken when a process comes back from the kernel, so none has reached it in all that time. A process that is
merely found waiting again and again (a slow disk, swapping) has run in between, by its count of context switches, and
hears signals. Where that count is not told, in a stage that may read or write for long (loading, saving, validating),
where not every stage is told, and where the machine swaps it is doubtful: that is told, and the doubt ends with the
limits of `stall`. A process that is stopped (SIGSTOP, a debugger) hears nothing either, but somebody wanted that: it
is told. That its stacks do not change is no witness: a search for kernels sits in one call for minutes. That a process
which was asked to end did not is no matter of this rule: its grace runs out.
"""

from __future__ import annotations

from collections.abc import Mapping, Reversible
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading, Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import lasting
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps
from supervisor.core.stats.holds import FRESH_S, run_of
from supervisor.core.unseen import ENDED

Run: TypeAlias = tuple[ProcessReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """One process of the job in state D in each of at least `min_readings` over `hold_s`, never run, and no step."""

    name: ClassVar[str] = "hang"
    group: ClassVar[Group] = "steps"
    cause: ClassVar[str] = causes.GPU_HANG
    enabled: bool = True
    act: Act = True
    hold_s: float = 30.0
    min_readings: int = 5

    def check(self, history: History) -> RedFlag | None:
        """Flag a process that no signal reaches while no step is made."""
        if history.over:
            return None
        no_step_s, since = history.no_step_s, history.no_step_since()
        if not history.train_ended and since is not None and no_step_s is not None and no_step_s >= self.hold_s:
            run, deaf = _stuck(history.processes, since, history.now)
            if history.has_lasted(run, self.hold_s, self.min_readings):
                pid = min(deaf, key=lambda number: (not deaf[number], number))
                said = _waits(run[-1], pid) + (" without running once" if deaf[pid] else "")
                return self._flag(history, run, said, self._severity(history, deaf))
        run = _stopped(history.processes, since or history.launched_at, history.now)
        if history.has_lasted(run, self.hold_s, self.min_readings):
            pid = min(run[-1].stopped_pids)
            return self._flag(history, run, f"process {pid} is stopped (SIGSTOP, a debugger)", Severity.WARNING)
        return None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how long a process has waited in the kernel, or was stopped, without a step."""
        no_step_s, since = history.no_step_s, history.no_step_since()
        why = ENDED if history.over else None if history.processes else "no reading of its processes"
        if why is not None:
            return unwatched(self.name, "no signal reaches a process, and no step", why)
        stopped = _stopped(history.processes, since or history.launched_at, history.now)
        held = lasting(
            history, stopped, self.hold_s, Gauge(rule=self.name, what="a process is stopped"), self.min_readings
        )
        if history.train_ended or since is None or no_step_s is None:
            return (held,)
        run, deaf = _stuck(history.processes, since, history.now)
        waits = Gauge(
            rule=self.name,
            what="a process waits in the kernel and no signal reaches it, and no step",
            severity=self._severity(history, deaf),
        )
        found = lasting(history, run, self.hold_s, waits, self.min_readings)
        return replace(found, now=min(no_step_s, found.now or 0.0)), held

    def _severity(self, history: History, deaf: Mapping[int, bool]) -> Severity:
        inside_step = not history.starting and history.stage in (Stage.STEP, Stage.COMPILE)
        proven = not deaf or any(deaf.values())
        sure = history.whole and inside_step and proven and not machine_gasps(history)
        return Severity.acting(act=self.act if sure else False)

    def _flag(self, history: History, run: Run, said: str, severity: Severity) -> RedFlag:
        stage = history.stage.value if history.stage else "unknown"
        quiet = "no step was seen" if history.no_step_s is None else f"no step for {history.no_step_s:.0f} s"
        return RedFlag(
            rule=self.name,
            severity=severity,
            at=history.now,
            message=f"{said} for {history.lasted_s(run):.0f} s, and {quiet} in stage {stage}",
            diagnosis=diagnosis_of(history),
        )


def _waits(reading: ProcessReading, pid: int) -> str:
    """Return who waits, and where as far as the kernel tells."""
    wait = next((kernel_wait for kernel_wait in reading.waits if kernel_wait.pid == pid), None)
    name = "" if wait is None else f" ({wait.name})"
    channel = "" if wait is None or wait.channel is None else f", {wait.channel}"
    return f"process {pid}{name} waits in the kernel (state D{channel})"


def _stuck(readings: Reversible[ProcessReading], since: Moment, now: Moment) -> tuple[Run, dict[int, bool]]:
    """Return the newest readings in which the same process waits in the kernel.

    With it: which processes do, each with whether all of these readings tell that it never ran in between.
    """
    run: list[ProcessReading] = []
    waiting: dict[int, int | None] = {}
    told: dict[int, bool] = {}
    for reading in reversed(readings):
        later = run[-1].at if run else now
        if reading.at.seconds_since(since) < 0 or later.seconds_since(reading.at) > FRESH_S:
            break
        here = {pid: _switches(reading, pid) for pid in reading.uninterruptible_pids}
        both = {pid: count for pid, count in here.items() if not run or (pid in waiting and _same(count, waiting[pid]))}
        if not both:
            break
        told = {pid: count is not None and told.get(pid, True) for pid, count in both.items()}
        waiting = {pid: waiting.get(pid) if count is None else count for pid, count in both.items()}
        run.append(reading)
    return tuple(reversed(run)), told


def _switches(reading: ProcessReading, pid: int) -> int | None:
    return next(
        (kernel_wait.switches for kernel_wait in reading.waits if kernel_wait.pid == kernel_wait.thread == pid), None
    )


def _same(number: int | None, other: int | None) -> bool:
    """Whether two counts may be those of one wait; of one that is not known nothing can be said."""
    return number is None or other is None or number == other


def _stopped(readings: Reversible[ProcessReading], since: Moment, now: Moment) -> Run:
    """Return the newest readings in which some process is stopped."""
    return run_of(readings, lambda process: process.at.seconds_since(since) >= 0 and bool(process.stopped_pids), now)
