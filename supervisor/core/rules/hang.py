"""Hang: a process of the training waits in the kernel and no signal reaches it. No signal is sent to find out.

When it acts. Two facts must hold together: no step is made while the agent reports that a step is due, and the same
process waits in the kernel (state D) in every reading for `hold_s` without having run. A signal is delivered when a
process returns from the kernel, so none has reached it in that time. A process that is often found waiting (a slow
disk, swapping) has run in between, by its count of context switches, and receives signals.

It only warns where that count is not available, where the kernel says that the process waits for a file system, in a
stage that may read or write for long (loading, saving, validating), where not every stage is reported, and where the
machine swaps; the limits of `stall` apply then. A process that a signal has stopped is `stopped_process`. Unchanged
stacks are no evidence: a kernel search stays in one call for minutes. A process that ignores SIGTERM is handled by the
grace period of the stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Reversible
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias

from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading, Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import measure_lasting
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps
from supervisor.core.stats.holds import FRESH_S

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

    def may_flag(self, history: History) -> bool:
        """Whether the newest reading shows a process that waits in the kernel."""
        newest = history.newest_processes
        return newest is not None and not history.over and bool(newest.uninterruptible_pids)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long a process has waited in the kernel without a step."""
        no_step_s, since = history.no_step_s, history.no_step_since()
        what = "no signal reaches a process, and no step"
        if history.over or not history.processes:
            return not_applicable(what, ATTEMPT_ENDED if history.over else "no reading of its processes")
        if history.train_ended or since is None or no_step_s is None:
            return not_applicable(what, history.why_not_stepping() or "no step is due")
        return (self._measure_waiting(history, since, no_step_s),)

    def _measure_waiting(self, history: History, since: Moment, no_step_s: float) -> Gauge:
        run, never_ran = _find_waiting(history.processes, since, history.now)
        named = Gauge(
            what="a process waits in the kernel and no signal reaches it, and no step",
            severity=self._choose_severity(history, never_ran, of_disk=_is_of_disk(run, never_ran)),
            observe=partial(_observe_waiting, history, run, never_ran, no_step_s),
        )
        gauge = measure_lasting(history, run, self.hold_s, named, self.min_readings)
        return replace(gauge, now=min(no_step_s, gauge.now or 0.0))

    def _choose_severity(self, history: History, never_ran: Mapping[int, bool], *, of_disk: bool) -> Severity:
        inside_step = not history.starting and history.stage in (Stage.STEP, Stage.COMPILE)
        proven = not never_ran or any(never_ran.values())
        sure = history.stages_complete and inside_step and proven and not of_disk and not machine_gasps(history)
        return Severity.acting(act=self.act if sure else False)


def _observe_waiting(history: History, run: Run, never_ran: Mapping[int, bool], no_step_s: float) -> Observation:
    pid = min(never_ran, key=lambda number: (not never_ran[number], number))
    seen = _describe_wait(run[-1], pid) + (" without running once" if never_ran[pid] else "")
    stage = history.stage.value if history.stage else "unknown"
    return Observation(
        message=f"{seen} for {history.lasted_s(run):.0f} s, and no step for {no_step_s:.0f} s in stage {stage}",
        diagnosis=diagnosis_of(history),
    )


def _describe_wait(reading: ProcessReading, pid: int) -> str:
    """Return who waits, and where as far as the kernel reports it."""
    wait = next((kernel_wait for kernel_wait in reading.waits if kernel_wait.pid == pid), None)
    name = "" if wait is None else f" ({wait.name})"
    channel = "" if wait is None or wait.channel is None else f", {wait.channel}"
    return f"process {pid}{name} waits in the kernel (state D{channel})"


def _find_waiting(readings: Reversible[ProcessReading], since: Moment, now: Moment) -> tuple[Run, dict[int, bool]]:
    """Return the newest readings in which the same process waits in the kernel.

    With it: which processes do, each with whether all of these readings show that it never ran in between.
    """
    run: list[ProcessReading] = []
    waiting: dict[int, int | None] = {}
    never_ran: dict[int, bool] = {}
    for reading in reversed(readings):
        later = run[-1].at if run else now
        if reading.at.seconds_since(since) < 0 or later.seconds_since(reading.at) > FRESH_S:
            break
        here = {pid: _read_switches(reading, pid) for pid in reading.uninterruptible_pids}
        both = {
            pid: count
            for pid, count in here.items()
            if not run or (pid in waiting and _may_be_same(count, waiting[pid]))
        }
        if not both:
            break
        never_ran = {pid: count is not None and never_ran.get(pid, True) for pid, count in both.items()}
        waiting = {pid: waiting.get(pid) if count is None else count for pid, count in both.items()}
        run.append(reading)
    return tuple(reversed(run)), never_ran


def _is_of_disk(run: Run, never_ran: Mapping[int, bool]) -> bool:
    """Whether every process that waits is known to wait for a file system, which may answer yet."""
    waits = [wait for wait in run[-1].waits if wait.pid in never_ran] if run else []
    return bool(waits) and all(wait.is_of_disk for wait in waits)


def _read_switches(reading: ProcessReading, pid: int) -> int | None:
    return next(
        (kernel_wait.switches for kernel_wait in reading.waits if kernel_wait.pid == kernel_wait.thread == pid), None
    )


def _may_be_same(number: int | None, other: int | None) -> bool:
    """Whether two counts may be those of one wait; a count that is not known may be."""
    return number is None or other is None or number == other
