"""Stall: the step counter stands still. Judged by step numbers alone, never by log activity or load.

Heartbeat threads keep printing while a step loop is wedged, and a wedged kernel shows 99 % GPU use (issue 1381 of the
PortOS project, the owner's nights of 14 and 15 November): neither says anything about progress.

What is proof. The settings' own limits are the owner's word: beyond them the silence alone is enough. Short of them
a limit that was learned takes two: the silence, and an agent that tells every stage there is, so that what takes so
long is no validation, no checkpoint, no wait for data and no search for kernels. Where the agent cannot tell them all
(a script that only torch's own hooks follow), or where the machine gasps for memory, it is told, and the doubt ends
at the setting's limit. Less silence is needed where the whole job rests (`rest.py`): `rest_limit_s` in a plain loop.
Steps that only a progress bar shows are held back by whatever holds back the output: they are doubtful for
`output_limit_s`, unless every process of the job idles as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading, Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.rest import rested_s, resting_limit_s, stopped_s, whole_job_rested_s
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps
from supervisor.core.stats.holds import run_of
from supervisor.core.unseen import no_steps_due

IDLE_CPU_PERCENT = 3.0
OUTPUT_DOUBT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """No step for `limit_s` while training, or a stage around or within a step longer than its own limit.

    With `learn` a limit becomes shorter as it is learned how long such a stage takes here.
    If the newest failure of a hook is younger than the last step, the hook may be at fault: that is only told.
    A training that stands still spoils nothing: what it saved between its last step and the hang is as sound as
    its proof says, and a file that it was writing just then is not proven.
    Before the first step, of the attempt or of a further training in one process, `start_timeout` watches instead.
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

    def check(self, history: History) -> RedFlag | None:
        """Flag the stage in which the training stands still longer than that stage may last."""
        if not _watched(history):
            return self._of_output(history)
        cap_s, no_step_s = self._cap_of(history), history.no_step_s
        if cap_s is None or no_step_s is None:
            return None
        learned_s = self._learned_s(history, cap_s)
        limit_s = cap_s if learned_s is None else learned_s
        resting_s = resting_limit_s(history, cap_s) if self.learn else None
        rested = resting_s is not None and resting_s < limit_s and rested_s(history) >= resting_s
        if resting_s is not None and rested:
            limit_s = learned_s = resting_s
        if self._whole_job_rests(history) and self.rest_limit_s < limit_s:
            limit_s, rested = self.rest_limit_s, True
        if no_step_s < limit_s:
            return None
        sure = history.hooked and (no_step_s >= cap_s or rested or _short_is_sure(history))
        stage = history.stage.value if history.stage else "unknown"
        last = f", last step {history.steps[-1].step}" if history.steps else ""
        how = "limit" if learned_s is None or learned_s >= cap_s or limit_s != learned_s else "learned limit"
        how += " at rest" if rested else ""
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act if sure else False),
            at=history.now,
            message=f"no step for {no_step_s:.0f} s in stage {stage} ({how} {limit_s:.0f} s){last}",
            diagnosis=diagnosis_of(history),
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how long no step was made, and how long that may be."""
        if not _watched(history):
            return self._bar(history)
        no_step_s, cap_s = history.no_step_s, self._cap_of(history)
        what = f"no step, in stage {history.stage.value if history.stage else 'unknown'}"
        if cap_s is None or no_step_s is None:
            return unwatched(self.name, what, "no step is due")
        learned_s = self._learned_s(history, cap_s)
        own = Gauge(
            rule=self.name,
            what=what,
            unit="s",
            now=no_step_s,
            limit=cap_s,
            severity=Severity.acting(act=self.act if history.hooked else False),
        )
        rest = self._rest(history, own, min(cap_s, learned_s or cap_s))
        if learned_s is None or learned_s >= cap_s:
            return (own, *rest)
        sure = history.hooked and _short_is_sure(history)
        short = replace(own, limit=learned_s, learned=True, severity=Severity.acting(act=self.act if sure else False))
        return (short, *rest) if sure else (short, own, *rest)

    def _rest(self, history: History, own: Gauge, limit_s: float) -> tuple[Gauge, ...]:
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

    def _bar(self, history: History) -> tuple[Gauge, ...]:
        what = "its progress bar does not advance"
        why, since = no_steps_due(history), history.output_step_at
        if why is None and history.hooked:
            why = "no first step yet: start_timeout watches"
        if why is not None or since is None:
            return unwatched(self.name, what if since else "no step", why or "no step was seen yet")
        told = Gauge(
            rule=self.name,
            what=what,
            unit="s",
            now=history.seconds_since(since),
            limit=self.output_limit_s,
        )
        acts_s = self.output_limit_s if self._all_rest(history, since) else OUTPUT_DOUBT * self.output_limit_s
        return told, replace(told, limit=acts_s, severity=Severity.acting(act=self.act))

    def _cap_of(self, history: History) -> float | None:
        """Return the limit of the present stage; where a process is stopped it is that of a step."""
        cap_s = self._cap_s(history.stage)
        if cap_s is None or cap_s <= self.limit_s or stopped_s(history) < self.limit_s:
            return cap_s
        return self.limit_s

    def _whole_job_rests(self, history: History) -> bool:
        """Whether nothing of the job has run for `rest_limit_s` in a loop, and no limit for rest was learned for it.

        None is learned where not every stage is told, nor in the first minutes of a loop that tells them all.
        """
        unlearned = not history.whole or history.learned.limit_s(history.stage, self.limit_s, resting=True) is None
        plain = unlearned and history.stage in (Stage.STEP, Stage.DATA_WAIT, None) and not machine_gasps(history)
        return self.learn and plain and history.hooked and whole_job_rested_s(history) >= self.rest_limit_s

    def _learned_s(self, history: History, cap_s: float) -> float | None:
        return history.learned_limit_s(cap_s) if self.learn else None

    def _cap_s(self, stage: Stage | None) -> float | None:
        match stage:
            case Stage.VALIDATE:
                return self.validate_limit_s
            case Stage.CHECKPOINT:
                return self.checkpoint_limit_s
            case Stage.DATA_WAIT:
                return self.data_wait_limit_s
            case Stage.COMPILE:
                return self.compile_limit_s
            case Stage.ENDED:
                return None
            case Stage.SETUP | Stage.WARMUP | Stage.STEP | None:
                return self.limit_s

    def _of_output(self, history: History) -> RedFlag | None:
        """Flag a training whose steps are seen in its output alone."""
        since = history.output_step_at
        if history.over or history.train_ended or history.hooked or since is None:
            return None
        still_s = history.seconds_since(since)
        if still_s < self.output_limit_s:
            return None
        sure = self._all_rest(history, since) or still_s >= OUTPUT_DOUBT * self.output_limit_s
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act if sure else False),
            at=history.now,
            message=f"its progress bar has stood at step {history.output_step} for {still_s:.0f} s "
            f"(limit {self.output_limit_s:.0f} s); nothing inside it reports its steps",
            subject="output",
            diagnosis=diagnosis_of(history),
        )

    def _all_rest(self, history: History, since: Moment) -> bool:
        idle = run_of(
            history.processes, lambda process: process.at.seconds_since(since) >= 0 and _idles(process), history.now
        )
        return history.lasted_s(idle) >= self.output_limit_s / 2


def _short_is_sure(history: History) -> bool:
    """Whether silence beyond a learned limit is enough: nothing but a step can take so long."""
    return history.whole and not machine_gasps(history)


def _watched(history: History) -> bool:
    return not (history.over or history.train_ended or history.starting)


def _idles(reading: ProcessReading) -> bool | None:
    return None if reading.cpu_percent is None else reading.cpu_percent <= IDLE_CPU_PERCENT
