"""Start timeout: a training that never makes its first step. It judges no training whose steps cannot be seen.

A kernel search of MIOpen that never ends, and a hang after the epoch's header and before its first batch, look like
this: 99 % GPU or 100 % CPU, and no step.

What is proof. Two things together: an agent that follows the training, and no step of it beyond the time that setting
up or the first batch may take. Without the agent nothing is: that is told once and left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.standstill import diagnosis_of
from supervisor.core.unseen import no_steps_due


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimeout:
    """No first step within `setup_limit_s` of setting up, or `warmup_limit_s` once the first batch was due.

    It acts only on a training that the agent follows (it claimed the recorder, told its plan or entered a stage). Any
    other may well be training unseen, so it is never stopped for making no steps; one that has also printed nothing
    for `setup_limit_s` is told about, once, for output that goes into a file is often held back and proves little.
    """

    name: ClassVar[str] = "start_timeout"
    group: ClassVar[Group] = "steps"
    cause: ClassVar[str] = causes.SLOW_START
    enabled: bool = True
    act: Act = True
    setup_limit_s: float = 1800.0
    warmup_limit_s: float = 600.0

    def check(self, history: History) -> RedFlag | None:
        """Flag a start that takes longer than its stage may last."""
        if history.over or history.train_ended or not history.starting:
            return None
        if not history.hooked:
            return self._silent(history)
        limit_s = self._limit_s(history.stage)
        if limit_s is None:
            return None
        waited_s = history.known_s(_began(history))
        if waited_s < limit_s:
            return None
        stage = history.stage.value if history.stage else "unknown"
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"no first step after {waited_s:.0f} s in stage {stage} (limit {limit_s:.0f} s)"
            + (f", last output: {history.last_line[:200]}" if history.last_line else ""),
            diagnosis=diagnosis_of(history),
        )

    def _limit_s(self, stage: Stage | None) -> float | None:
        match stage:
            case Stage.SETUP | Stage.VALIDATE | None:
                # Some frameworks try a validation before the first step; it may load as much as setup does.
                return self.setup_limit_s
            case Stage.WARMUP | Stage.STEP | Stage.CHECKPOINT | Stage.DATA_WAIT | Stage.COMPILE:
                return self.warmup_limit_s
            case Stage.ENDED:
                return None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how long the start has taken, and how long it may."""
        limit_s = self._limit_s(history.stage)
        what = f"no first step, in stage {history.stage.value if history.stage else 'unknown'}"
        why = no_steps_due(history) or (None if history.starting else "it has begun")
        if why is None and not history.hooked:
            return (
                Gauge(
                    rule=self.name,
                    what="no output of a training whose steps are not seen",
                    unit="s",
                    now=_silent_s(history),
                    limit=self.setup_limit_s,
                ),
            )
        if why is not None or limit_s is None:
            return unwatched(self.name, what, why or "no step is due")
        return (
            Gauge(
                rule=self.name,
                what=what,
                unit="s",
                now=history.known_s(_began(history)),
                limit=limit_s,
                severity=Severity.acting(act=self.act),
            ),
        )

    def _silent(self, history: History) -> RedFlag | None:
        silent_s = _silent_s(history)
        if silent_s < self.setup_limit_s:
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"no output for {silent_s:.0f} s from a training whose steps cannot be seen; it is left alone",
            subject="output",
        )


def _silent_s(history: History) -> float:
    return history.seconds_since(history.output_at or history.launched_at)


def _began(history: History) -> Moment:
    """Return when the present part of the start began; stages before setup count to the launch."""
    if history.stage is None or history.stage_since is None:
        return history.launched_at
    if history.stage is Stage.SETUP and history.last_step_at is None:
        return history.launched_at
    return history.stage_since
