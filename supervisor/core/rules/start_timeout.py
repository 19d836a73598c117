"""Start timeout: a training that does not make its first step. Trainings whose steps cannot be seen are not stopped.

A kernel search of MIOpen that never ends, and a hang after the epoch's header and before its first batch, look like
this: 99 % GPU or 100 % CPU, and no step.

When it acts. An agent follows the training, and no step was made in the time that setup or the first batch may take.
Without the agent it warns once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage
from supervisor.core.remedies import causes
from supervisor.core.rules.standstill import diagnosis_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimeout:
    """No first step within `setup_limit_s` of setting up, or `warmup_limit_s` once the first batch was due.

    It acts only on a training that the agent follows (it claimed the recorder, reported its plan or entered a stage).
    Any other may be training without being seen, so it is not stopped for missing steps; if it has also printed nothing
    for `setup_limit_s`, there is one warning, since output that goes into a file is often buffered.
    """

    name: ClassVar[str] = "start_timeout"
    group: ClassVar[Group] = "steps"
    cause: ClassVar[str] = causes.SLOW_START
    enabled: bool = True
    act: Act = True
    setup_limit_s: float = 1800.0
    warmup_limit_s: float = 600.0

    def may_flag(self, history: History) -> bool:
        """Whether the training still has to make its first step."""
        return history.starting and not (history.over or history.train_ended)

    def _limit_s(self, stage: Stage | None) -> float | None:
        match stage:
            case Stage.SETUP | Stage.VALIDATE | None:
                # Some frameworks try a validation before the first step; it may load as much as setup does.
                return self.setup_limit_s
            case Stage.WARMUP | Stage.STEP | Stage.CHECKPOINT | Stage.DATA_WAIT | Stage.COMPILE | Stage.EXITING:
                return self.warmup_limit_s
            case Stage.LOOP | Stage.ENDED:  # a loop's steps are not seen: it may have made many
                return None

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long the start has taken, and how long it may."""
        limit_s = self._limit_s(history.training_stage)
        stage = history.training_stage.value if history.training_stage else "unknown"
        what = f"no first step, in stage {stage}"
        why = history.why_not_stepping() or (None if history.starting else "it has begun")
        if why is None and not history.hooked:
            return (self._measure_silence(history),)
        if why is not None or limit_s is None:
            return not_applicable(what, why or "no step is due")
        waited_s = history.known_s(_find_start(history))
        last = f", last output: {history.last_line[:200]}" if history.last_line else ""
        return (
            Gauge(
                what=what,
                unit="s",
                now=waited_s,
                limit=limit_s,
                severity=Severity.acting(act=self.act),
                observe=lambda: Observation(
                    message=f"no first step after {waited_s:.0f} s in stage {stage} (limit {limit_s:.0f} s){last}",
                    diagnosis=diagnosis_of(history),
                ),
            ),
        )

    def _measure_silence(self, history: History) -> Gauge:
        silent_s = history.output_known_s(history.output_at or history.launched_at)
        text = f"no output for {silent_s:.0f} s from a training whose steps cannot be seen; it is left alone"
        return Gauge(
            what="no output of a training whose steps are not seen",
            unit="s",
            now=silent_s,
            limit=self.setup_limit_s,
            observe=lambda: Observation(message=text, subject="output"),
        )


def _find_start(history: History) -> Moment:
    """Return when the present part of the start began; stages before setup count to the launch.

    Of a stage of rank 0 on another node of which there is no news any more, when it began is the newest that is known.
    """
    if history.stage is None and history.elsewhere.since is not None:
        return history.launched_at if history.training_stage is Stage.SETUP else history.elsewhere.since
    if history.stage is None or history.stage_since is None:
        return history.launched_at
    if history.stage is Stage.SETUP and history.last_step_at is None:
        return history.launched_at
    return history.stage_since
