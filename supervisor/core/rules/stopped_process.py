"""Stopped process: a signal has stopped a process of the training (state T), and the job does not progress.

When it acts. It needs no limit of a stage, so it is as soon in a start, a validation, a save and the end of a training
as in a step: a stopped process does not go on by itself. Over the whole of `hold_s` no step was made, and either a
process that makes steps is stopped, or one is while the job takes no processor time, prints nothing and no GPU of it is
known to work. Any other stopped process (a shell that a script left behind), and one that a debugger or the job control
of a terminal holds, is a warning: whoever holds it lets it go, and no rule waits for a
step meanwhile. So is a launcher that is stopped while its ranks make steps: it would see neither their end nor a fault.

What is done. SIGCONT first, once in an attempt (`continue_first`): for `GOES_ON_S` after it no rule that waits for a
step is asked. If a process is still stopped after `decide.CONTINUE_WAIT_S`, or is stopped again, or no step comes, the
attempt is stopped with a save, and resumed.

What is frozen with its control group (`docker pause`, `systemctl freeze`) is held as by a debugger, and no signal ends
it before it is thawed. Once what was held goes on, rules wait for its next step for `RESUMES_S` before they are asked.

With `act = false` a stopped training is told and left alone: the rules that wait for a step (`judge.LEFT_STOPPED`) are
held until it has gone on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias

from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import measure_lasting
from supervisor.core.rules.rest import quiet_s
from supervisor.core.rules.standstill import choose_stopped, describe_hold, diagnosis_of
from supervisor.core.stats.holds import run_of

Run: TypeAlias = tuple[ProcessReading, ...]

GOES_ON_S = 60.0
"""After the SIGCONT of this rule a training has so long for its next step, as after any other pause."""
RESUMES_S = 600.0
"""After SIGCONT a training has so long for its next step before the rules that wait for one are asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedProcess:
    """A process of the job stopped in each of at least `min_readings` over `hold_s`, and no step."""

    name: ClassVar[str] = "stopped_process"
    group: ClassVar[Group] = "process"
    cause: ClassVar[str] = causes.STALL
    enabled: bool = True
    act: Act = True
    hold_s: float = 30.0
    min_readings: int = 5
    continue_first: bool = True

    def may_flag(self, history: History) -> bool:
        """Whether the newest reading shows a process that is stopped."""
        newest = history.newest_processes
        return newest is not None and not history.over and bool(newest.stopped_pids)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long a process was stopped, and for how long that proves that there is no progress."""
        what = "a process is stopped"
        if history.over or not history.processes:
            return not_applicable(what, ATTEMPT_ENDED if history.over else "no reading of its processes")
        stopped = _find_run(history, lambda reading: reading.stopped_pids)
        makes_steps = _find_run(history, lambda reading: _list_makers(history, reading))
        at_rest = _find_run(history, _list_signalled)
        acts = Severity.acting(act=self.act)
        rests = self._measure_run(history, at_rest, f"{what}, and the job rests", acts)
        launcher = run_of(history.processes, partial(_is_launcher_stopped, history), history.now)
        warns = self._measure_run(history, stopped, what, Severity.WARNING)
        if history.last_step is None and not _list_signalled(history.processes[-1]):
            # A debugger that starts a program stops it at each signal and library, for moments in which it works.
            warns = replace(warns, now=min(warns.now or 0.0, quiet_s(history)))
        if len(launcher) > len(stopped):
            named = replace(warns, observe=partial(_observe_launcher, history, launcher))
            warns = measure_lasting(history, launcher, self.hold_s, named, self.min_readings)
        return (
            self._measure_run(history, makes_steps, f"{what} that makes steps", acts),
            replace(rests, now=min(rests.now or 0.0, quiet_s(history))),
            warns,
        )

    def _measure_run(self, history: History, run: Run, what: str, severity: Severity) -> Gauge:
        named = Gauge(what=what, severity=severity, observe=partial(_observe, history, run))
        return measure_lasting(history, run, self.hold_s, named, self.min_readings)

    def leaves_alone(self, history: History) -> bool:
        """Whether the training is stopped, or has just gone on, and the setting says that it is left alone."""
        at = history.stopped_at
        if not self.enabled or self.act is not False or at is None or history.over:
            return False
        since = history.no_step_since()
        return (since is None or at.seconds_since(since) >= 0) and history.seconds_since(at) < RESUMES_S

    def list_continuable(self, history: History) -> tuple[int, ...]:
        """Return the processes that SIGCONT may continue; none where that is not to be tried."""
        newest = history.newest_processes
        if not self.enabled or not self.continue_first or self.act is not True or newest is None:
            return ()
        return _list_signalled(newest)

    def is_held(self, history: History) -> bool:
        """Whether a debugger or a terminal holds a process that trains: whoever uses it lets it go."""
        newest = history.processes[-1]
        trains = {history.training_pid, *history.reports.rank_pids.values()}
        return not history.over and not trains.isdisjoint(newest.held_pids)

    def goes_on(self, history: History) -> bool:
        """Whether the training was continued, or is not held any more, runs, and still has time for its next step."""
        if history.over or history.processes[-1].stopped_pids:
            return False
        since = history.no_step_since()
        return any(
            at is not None and (since is None or at.seconds_since(since) >= 0) and history.seconds_since(at) < within_s
            for at, within_s in ((history.continued_at, GOES_ON_S), (_find_end_of_hold(history), RESUMES_S))
        )


def _find_end_of_hold(history: History) -> Moment | None:
    """Return when what trains was last seen to be held; None where a signal had stopped it, or nothing."""
    at = history.stopped_at
    return at if any(reading.at == at and reading.held_pids for reading in history.processes) else None


def _list_signalled(reading: ProcessReading) -> tuple[int, ...]:
    """Return the processes that a signal has stopped, and that nothing holds."""
    return tuple(pid for pid in reading.stopped_pids if pid not in reading.held_pids)


def _list_makers(history: History, reading: ProcessReading) -> tuple[int, ...]:
    makers = history.reports.rank_pids.values()
    return tuple(pid for pid in _list_signalled(reading) if pid in makers)


def _is_launcher_stopped(history: History, reading: ProcessReading) -> bool:
    """Whether a signal has stopped the process that was launched, and others than it make the steps."""
    makers = history.reports.rank_pids.values()
    return bool(makers) and history.training_pid not in makers and history.training_pid in _list_signalled(reading)


def _find_run(history: History, stopped_in: Callable[[ProcessReading], tuple[int, ...]]) -> Run:
    """Return the newest readings with such a process, since the last progress."""
    since = history.no_step_since() or history.launched_at
    return run_of(
        history.processes,
        lambda reading: reading.at.seconds_since(since) >= 0 and bool(stopped_in(reading)),
        history.now,
    )


def _observe(history: History, run: Run) -> Observation:
    newest = run[-1]
    pid = choose_stopped(history, newest)
    held = pid in newest.held_pids
    known = history.training_stage
    stage = "no step was seen yet" if known is None else f"stage {known.value}"
    on = "" if held else f"; `kill -CONT {pid}` (SIGCONT) lets it go on"
    return Observation(
        message=f"process {pid} is {describe_hold(newest, pid)} for {history.lasted_s(run):.0f} s, "
        f"{'' if pid in newest.frozen_pids else 'state T, '}without progress ({stage}){on}",
        can_save=True,
        diagnosis=diagnosis_of(history),
    )


def _observe_launcher(history: History, run: Run) -> Observation:
    pid, lasted_s = history.training_pid, history.lasted_s(run)
    return Observation(
        message=f"the launcher, process {pid}, is stopped by a signal (SIGSTOP, Ctrl-Z) for {lasted_s:.0f} s, "
        "state T, while its ranks make steps: it would see neither their end nor a fault; "
        f"`kill -CONT {pid}` (SIGCONT) lets it go on"
    )
