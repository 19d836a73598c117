"""Idle job: nothing of the job runs although it has not ended; for what makes no steps that anybody sees.

What is proof. All together, over the whole of `limit_s`: no process of the job takes processor time, no thread of it is
scheduled to speak of, it prints nothing, and no card of it works. That is what a process looks like that somebody has
stopped, that waits for a lock that nobody gives back, or for a terminal. A long `sleep` looks like it as well, so it
warns; with `act` it acts once `act_limit_s` have gone by. Where steps are seen, `stall` is sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.remedies import causes
from supervisor.core.rules.rest import idle_s
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps
from supervisor.core.unseen import ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """No processor, no scheduling, no output and no card in use for `limit_s`; acts after `act_limit_s` if told to."""

    name: ClassVar[str] = "idle_job"
    group: ClassVar[Group] = "process"
    cause: ClassVar[str] = causes.STALL
    enabled: bool = True
    act: Act = False
    limit_s: float = 30.0
    act_limit_s: float = 300.0

    def check(self, history: History) -> RedFlag | None:
        """Flag a job of which nothing runs."""
        reached = [gauge for gauge in self.watch(history) if gauge.reached]
        if not reached:
            return None
        rested_s = reached[-1].now or 0.0
        what = "stopped (state T)" if history.processes[-1].stopped_pids else "idle"
        stage = "no step was seen yet" if history.stage is None else f"stage {history.stage.value}"
        return RedFlag(
            rule=self.name,
            severity=reached[-1].severity,
            at=history.now,
            message=f"all processes have been {what} for {rested_s:.0f} s: no CPU, no output, no GPU ({stage})",
            diagnosis=diagnosis_of(history),
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long nothing ran, and how long that may be."""
        what = "nothing of the job runs"
        if history.over or not history.processes:
            return unwatched(self.name, what, ENDED if history.over else "no reading of its processes")
        if machine_gasps(history):
            return unwatched(self.name, what, "the machine waits for memory")
        now = idle_s(history)
        told = Gauge(rule=self.name, what=what, unit="s", now=now, limit=self.limit_s)
        if not self.act:
            return (told,)
        severity = Severity.acting(act=self.act)
        return told, Gauge(rule=self.name, what=what, unit="s", now=now, limit=self.act_limit_s, severity=severity)
