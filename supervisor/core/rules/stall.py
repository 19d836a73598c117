"""Stall: no step is made for longer than the present stage may last.

Only step numbers count, never log activity or load: heartbeat threads keep printing while a step loop hangs, and a
kernel that never ends shows 99 % GPU use (PortOS issue 1381; the recorded nights of 14 and 15 November).

When it acts. Beyond a configured limit the missing step is enough. A shorter, learned limit needs two facts: the
missing step, and an agent that reports every stage, so that a validation, a checkpoint, a wait for data or a kernel
search is excluded. Where the agent does not report every stage (a script with torch's hooks only), where the machine
is short of memory, or where the training sleeps by a timer or waits for a peer outside of the job, it only warns until
the configured limit. If the whole job rests (`rest.py`), less time is needed: `rest_limit_s` in a plain loop. Steps
that are seen only in a progress bar may be delayed by output buffering: they act after three times `output_limit_s`, or
after `output_limit_s` if every process is idle as well.

A silence for which an attempt was stopped before, after the same step, may be the program's own: an upload, an
evaluation, a save that no hook sees. It may last five times as long each time, for which rest alone is found sooner,
and one that an attempt has come out of may come again in it.

A call that makes many steps in one compiled loop (`lax.scan`) has no limit: it may be the whole training. There it acts
only where the whole job rests, and warns where a call takes far longer than those before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading, Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.dead_worker import is_ending_by_exception
from supervisor.core.rules.known_silences import count_silences_here, is_silent_again, lengthen_limit_s
from supervisor.core.rules.lost_process import find_lost_training
from supervisor.core.rules.rest import (
    awaits_outside,
    rested_s,
    resting_limit_s,
    stopped_s,
    was_stopped_throughout,
    whole_job_rested_s,
)
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps, name_ended, name_stopped
from supervisor.core.sanitize import sanitize
from supervisor.core.stats.holds import run_of
from supervisor.core.stats.learned_limits import BOUNDS

IDLE_CPU_PERCENT = 3.0
RAISED_CHARACTERS = 200
"""Of an exception's words in a message."""
OUTPUT_DOUBT = 3
SHORTEST_LEARNED_S = min(
    floor_s for bounds in BOUNDS.values() for floor_s in (bounds.floor_s, bounds.resting_floor_s) if floor_s is not None
)
"""No learned limit is shorter, unless the setting's own is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """No step for `limit_s` while training, or a stage around or within a step longer than its own limit.

    With `learn` a limit becomes shorter as the usual duration of such a stage becomes known.
    If a hook failed after the last step, the hook may be the cause: it only warns.
    A stall does not spoil checkpoints: what was saved before it is as good as its proof says, and a file that was being
    written is not proven.
    Before the first step, of the attempt or of a further training in one process, `start_timeout` applies instead.
    """

    name: ClassVar[str] = "stall"
    group: ClassVar[Group] = "steps"
    cause: ClassVar[str] = causes.STALL
    enabled: bool = True
    act: Act = True
    learn: bool = True
    limit_s: float = 60.0
    data_wait_limit_s: float = 180.0
    compile_limit_s: float = 600.0
    validate_limit_s: float = 3600.0
    checkpoint_limit_s: float = 900.0
    output_limit_s: float = 900.0
    rest_limit_s: float = 20.0

    def may_flag(self, history: History) -> bool:
        """Whether no step was made for the shortest limit that there is, set or learned."""
        if history.over or history.train_ended:
            return False
        if history.starting and history.stage is not Stage.LOOP:
            return not history.hooked and history.output_step_at is not None
        cap_s = self._cap_s(history.stage)  # none for a loop, of which the whole job may rest
        shortest_s = min(self.limit_s, self.rest_limit_s, SHORTEST_LEARNED_S, self.limit_s if cap_s is None else cap_s)
        return history.without_step_s >= shortest_s

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long no step was made, and how long that may be; the flag names the shortest limit reached."""
        if history.stage is Stage.LOOP and not (history.over or history.train_ended):
            return self._measure_loop(history)
        if history.over or history.train_ended or history.starting:
            return self._measure_output(history)
        no_step_s, cap_s = history.no_step_s, self._cap_of(history)
        what = f"no step, in stage {history.training_stage.value if history.training_stage else 'unknown'}"
        if no_step_s is None and history.training_stage is not None:
            return not_applicable(what, "the node of rank 0 watches its steps")
        if cap_s is None or no_step_s is None:
            return not_applicable(what, "no step is due")
        own = Gauge(
            what=what,
            unit="s",
            now=no_step_s,
            limit=cap_s,
            severity=Severity.acting(act=self.act if history.hooked else False),
        )
        gauges = self._measure_silence(history, own, cap_s)
        reached = [gauge for gauge in gauges if gauge.reached]
        if not reached:
            return gauges
        shortest = min(reached, key=lambda gauge: gauge.limit or 0.0)
        observe = partial(_observe_silence, history, shortest, no_step_s, at_rest=shortest.what != what)
        return tuple(replace(gauge, observe=observe) if gauge.reached else gauge for gauge in gauges)

    def _measure_silence(self, history: History, own: Gauge, cap_s: float) -> tuple[Gauge, ...]:
        if is_ending_by_exception(history):
            # Its workers, threads and exit handlers may take longer to end than any step: it has the setting's limit.
            return (own,)
        learned_s = self._learned_s(history, cap_s)
        rest = self._measure_rest(history, own, min(cap_s, learned_s or cap_s))
        if learned_s is None or learned_s >= cap_s:
            return (own, *rest)
        sure = history.hooked and _is_short_sure(history)
        severity = Severity.acting(act=self.act if sure else False)
        short = replace(own, limit=learned_s, learned=True, severity=severity)
        return (short, *rest) if sure else (short, own, *rest)

    def _measure_rest(self, history: History, own: Gauge, limit_s: float) -> tuple[Gauge, ...]:
        """Return how long the whole job rests, where that proves a stall sooner than the silence alone."""
        what = f"{own.what}, and the whole job rests"
        severity = Severity.acting(act=self.act)
        if self._whole_job_rests(history) and self.rest_limit_s < limit_s:
            now = min(own.now or 0.0, whole_job_rested_s(history))
            return (replace(own, what=what, now=now, limit=self.rest_limit_s, severity=severity),)
        resting_s = resting_limit_s(history, limit_s) if self.learn else None
        if resting_s is None or resting_s >= limit_s:
            return ()
        now = rested_s(history)
        return (replace(own, what=what, now=now, limit=resting_s, learned=True, severity=severity),)

    def _measure_loop(self, history: History) -> tuple[Gauge, ...]:
        """Return how long the whole job rests in a compiled loop, and how long its call takes where that is known."""
        what, no_step_s = "no end of a compiled loop, whose steps are not seen", history.without_step_s
        # On what no sensor reads (a TPU, an unknown GPU) a loop may compute while its process waits for it.
        seen = history.device == "cpu" or bool(history.readings_by_gpu())
        rests = Gauge(
            what=f"{what}, and the whole job rests",
            unit="s",
            now=min(no_step_s, whole_job_rested_s(history)) if seen and not machine_gasps(history) else 0.0,
            limit=self.rest_limit_s,
            severity=Severity.acting(act=self.act),
            observe=partial(_observe_loop, history, no_step_s, "the whole job rests"),
        )
        learned_s = self._learned_s(history, math.inf)
        if learned_s is None:
            return (rests,)
        long = f"calls before it suggest at most {learned_s:.0f} s"
        observe = partial(_observe_loop, history, no_step_s, long)
        return rests, Gauge(what=what, unit="s", now=no_step_s, limit=learned_s, learned=True, observe=observe)

    def _measure_output(self, history: History) -> tuple[Gauge, ...]:
        """Return how long the progress bar of a training has stood whose steps are seen in its output alone."""
        what = "its progress bar does not advance"
        why, since = history.why_not_stepping(), history.output_step_at
        if why is None and history.hooked:
            why = "no first step yet: start_timeout watches"
        if why is not None or since is None:
            return not_applicable(what if since else "no step", why or "no step was seen yet")
        still_s = history.output_known_s(since)
        warns = Gauge(
            what=what,
            unit="s",
            now=still_s,
            limit=self.output_limit_s,
            observe=partial(self._observe_output, history, still_s),
        )
        rests = self._all_rest(history, since)
        if history.output_bar_ended and not rests:
            return (warns,)  # of the preparation of the data, it may be: what comes after it may print nothing
        acts_s = self.output_limit_s if rests else OUTPUT_DOUBT * self.output_limit_s
        return warns, replace(warns, limit=acts_s, severity=Severity.acting(act=self.act))

    def _observe_output(self, history: History, still_s: float) -> Observation:
        return Observation(
            message=f"its progress bar has stood at step {history.output_step} for {still_s:.0f} s "
            f"(limit {self.output_limit_s:.0f} s); nothing inside it reports its steps{name_stopped(history)}",
            subject="output",
            diagnosis=diagnosis_of(history),
        )

    def _cap_of(self, history: History) -> float | None:
        """Return the limit of the present stage; where a process is stopped it is that of a step.

        Where a tune has just switched settings, kernels may be searched for in any stage.
        """
        cap_s = self._cap_s(history.stage)
        if cap_s is None:
            return None
        if history.switching:
            return max(cap_s, self.compile_limit_s)
        if stopped_s(history) < self.limit_s:
            return lengthen_limit_s(history, cap_s, self.validate_limit_s)
        return min(cap_s, self.limit_s)

    def _whole_job_rests(self, history: History) -> bool:
        """Whether nothing of the job has run for `rest_limit_s` in a loop, and no limit for rest was learned for it.

        None is learned where not every stage is reported, nor in the first minutes of a loop that reports them all.
        """
        unlearned = (
            not history.stages_complete or history.learned.limit_s(history.stage, self.limit_s, resting=True) is None
        )
        plain = unlearned and history.stage in (Stage.STEP, Stage.DATA_WAIT, None) and not machine_gasps(history)
        return (
            self.learn
            and plain
            and history.hooked
            and not history.tuning
            and whole_job_rested_s(history) >= self.rest_limit_s
        )

    def _learned_s(self, history: History, cap_s: float) -> float | None:
        return history.learned_limit_s(cap_s) if self.learn else None

    def _cap_s(self, stage: Stage | None) -> float | None:
        match stage:
            case Stage.VALIDATE | Stage.EXITING:
                return self.validate_limit_s
            case Stage.CHECKPOINT:
                return self.checkpoint_limit_s
            case Stage.DATA_WAIT:
                return self.data_wait_limit_s
            case Stage.COMPILE:
                return self.compile_limit_s
            case Stage.LOOP | Stage.ENDED:
                return None
            case Stage.SETUP | Stage.WARMUP | Stage.STEP | None:
                return self.limit_s

    def _all_rest(self, history: History, since: Moment) -> bool:
        idle = run_of(
            history.processes, lambda process: process.at.seconds_since(since) >= 0 and _is_idle(process), history.now
        )
        return history.lasted_s(idle) >= self.output_limit_s / 2


def _observe_silence(history: History, reached: Gauge, no_step_s: float, *, at_rest: bool) -> Observation:
    stage = history.stage.value if history.stage else "unknown"
    last = "" if history.last_step is None else f", last step {history.last_step.step}"
    gone = find_lost_training(history)
    lost = "" if gone is None else f"; the process that trained (pid {gone}) is gone, and its program still runs"
    lost += _name_raised(history, no_step_s)
    how = ("learned limit" if reached.learned else "limit") + (" at rest" if at_rest else "")
    return Observation(
        message=f"no step for {no_step_s:.0f} s in stage {stage} ({how} {reached.limit:.0f} s){last}{lost}"
        f"{name_ended(history)}{name_stopped(history)}{_name_again(history)}",
        can_save=was_stopped_throughout(history),
        diagnosis=diagnosis_of(history),
    )


def _name_again(history: History) -> str:
    """Return how many attempts were stopped in the same silence before, or nothing."""
    times = count_silences_here(history)
    return "" if times == 0 else f"; {times} {'attempt was' if times == 1 else 'attempts were'} stopped after this step"


def _name_raised(history: History, no_step_s: float) -> str:
    """Return which exception ended a process of the program since the last step, or nothing."""
    since = [raised for raised in history.raised if history.seconds_since(raised.at) <= no_step_s]
    if not since:
        return ""
    words = " ".join(sanitize(f"{since[0].kind}: {since[0].facts.get('message') or ''}").split())
    who = "a process" if since[0].pid is None else f"process {since[0].pid}"
    return f"; {who} raised {words[:RAISED_CHARACTERS].rstrip(': ')}"


def _observe_loop(history: History, no_step_s: float, why: str) -> Observation:
    return Observation(
        message=f"no end of a compiled loop for {no_step_s:.0f} s, whose steps are not seen: {why}"
        f"{name_stopped(history)}",
        diagnosis=diagnosis_of(history),
    )


def _is_short_sure(history: History) -> bool:
    """Whether silence beyond a learned limit is enough: nothing but a step can take so long.

    A pause that the program makes by itself, as to let a GPU cool, and the answer of a server that a step waits for
    are not learned from the steps without them.
    """
    again = is_silent_again(history)
    return history.stages_complete and not machine_gasps(history) and not awaits_outside(history) and not again


def _is_idle(reading: ProcessReading) -> bool | None:
    return None if reading.cpu_percent is None else reading.cpu_percent <= IDLE_CPU_PERCENT
