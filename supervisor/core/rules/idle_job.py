"""Idle job: no process of the job runs although it has not ended; for trainings whose steps are not seen.

When it acts. All of this holds over the whole of `limit_s`: no process of the job takes processor time, its threads are
hardly scheduled, it prints nothing, and no GPU of it works. A stopped process looks like that, one that waits for a
lock that is never released, or for a terminal. So does a long `sleep`: it warns, and with `act` it acts after
`act_limit_s`. Where steps are seen, `stall` is sooner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History
from supervisor.core.remedies import causes
from supervisor.core.rules.rest import find_last_sign, idle_s
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """No processor time, scheduling, output or GPU use for `limit_s`; with `act` it acts after `act_limit_s`."""

    name: ClassVar[str] = "idle_job"
    group: ClassVar[Group] = "process"
    cause: ClassVar[str] = causes.STALL
    enabled: bool = True
    act: Act = False
    limit_s: float = 30.0
    act_limit_s: float = 300.0

    def may_flag(self, history: History) -> bool:
        """Whether there was no output and no step for as long as the shorter limit."""
        silent_s = history.now.seconds_since(find_last_sign(history))
        return bool(history.processes) and silent_s >= min(self.limit_s, self.act_limit_s)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long nothing ran, and how long that may be."""
        what = "nothing of the job runs"
        if history.over or not history.processes:
            return not_applicable(what, ATTEMPT_ENDED if history.over else "no reading of its processes")
        if machine_gasps(history):
            return not_applicable(what, "the machine waits for memory")
        now = idle_s(history)
        observe = partial(_observe_rest, history, now)
        warns = Gauge(what=what, unit="s", now=now, limit=self.limit_s, observe=observe)
        if not self.act:
            return (warns,)
        return warns, replace(warns, limit=self.act_limit_s, severity=Severity.acting(act=self.act))


def _observe_rest(history: History, rested_s: float) -> Observation:
    what = "stopped (state T)" if history.processes[-1].stopped_pids else "idle"
    known = history.training_stage
    stage = "no step was seen yet" if known is None else f"stage {known.value}"
    return Observation(
        message=f"all processes have been {what} for {rested_s:.0f} s: no CPU, no output, no GPU ({stage})",
        diagnosis=diagnosis_of(history),
    )
