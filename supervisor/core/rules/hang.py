"""Hang: the training is alive and no signal reaches it. It sends none to find out.

What is proof. A process that waits in the kernel (state D) hears no signal until that wait ends, and it is told apart
from a slow disk by two things that must hold together: the same process is found there in every reading for `hold_s`,
and no step comes, while the agent says that a step is what it is in. It is doubtful in a stage that may read or write
for long (loading, saving, validating), where not every stage is told, and where the machine swaps: that is told, and
the doubt ends with the limits of `stall`. That its stacks do not change is no witness: a search for kernels sits in
one call for minutes. That a process which was asked to end did not is no matter of this rule: its grace runs out.
"""

from __future__ import annotations

from collections.abc import Reversible
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading, Stage
from supervisor.core.rules.standstill import diagnosis_of, machine_gasps
from supervisor.core.series import FRESH_S, lasted_s
from supervisor.core.unseen import no_steps_due
from supervisor.core.watched import Group, Watched, unwatched


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """One process of the job in state D in each of at least `min_readings` over `hold_s`, and no step meanwhile."""

    name: ClassVar[str] = "hang"
    group: ClassVar[Group] = "steps"
    enabled: bool = True
    act: Act = True
    hold_s: float = 30.0
    min_readings: int = 5

    def check(self, history: History) -> RedFlag | None:
        """Flag a process that waits in the kernel while no step is made."""
        quiet_s, since = history.quiet_s, history.quiet_since()
        if history.over or history.train_ended or since is None or quiet_s is None or quiet_s < self.hold_s:
            return None
        run, pids = _stuck(history.processes, since, history.now)
        if len(run) < self.min_readings or lasted_s(run) < self.hold_s:
            return None
        stage = history.stage.value if history.stage else "unknown"
        return RedFlag(
            rule=self.name,
            severity=self._severity(history),
            at=history.now,
            message=f"{_named(run[-1], min(pids))} for {lasted_s(run):.0f} s, "
            f"and no step for {quiet_s:.0f} s in stage {stage}",
            diagnosis=diagnosis_of(history),
        )

    def watch(self, history: History) -> tuple[Watched, ...]:
        """Return how long a process has waited in the kernel without a step."""
        what, quiet_s, since = "a process waits in the kernel, and no step", history.quiet_s, history.quiet_since()
        why = no_steps_due(history) or (None if history.processes else "no reading of its processes")
        if why is not None or since is None or quiet_s is None:
            return unwatched(self.name, what, why or "no step was seen yet")
        run, _ = _stuck(history.processes, since, history.now)
        return (
            Watched(
                rule=self.name,
                what=what,
                unit="s",
                now=min(quiet_s, lasted_s(run)),
                limit=self.hold_s,
                lacks=None if len(run) >= self.min_readings else f"{self.min_readings} readings of it",
                severity=self._severity(history),
            ),
        )

    def _severity(self, history: History) -> Severity:
        inside_step = not history.starting and history.stage in (Stage.STEP, Stage.COMPILE)
        sure = history.whole and inside_step and not machine_gasps(history)
        return Severity.acting(act=self.act if sure else False)


def _named(reading: ProcessReading, pid: int) -> str:
    """Return who waits, and where as far as the kernel tells."""
    wait = next((one for one in reading.waits if one.pid == pid), None)
    name = "" if wait is None else f" ({wait.name})"
    channel = "" if wait is None or wait.channel is None else f", {wait.channel}"
    return f"process {pid}{name} waits in the kernel (state D{channel})"


def _stuck(
    readings: Reversible[ProcessReading], since: Moment, now: Moment
) -> tuple[tuple[ProcessReading, ...], frozenset[int]]:
    """Return the newest readings in which one and the same process waits in the kernel, and which one it is."""
    run: list[ProcessReading] = []
    pids: frozenset[int] = frozenset()
    for reading in reversed(readings):
        later = run[-1].at if run else now
        both = pids & frozenset(reading.uninterruptible_pids) if run else frozenset(reading.uninterruptible_pids)
        if not both or reading.at.seconds_since(since) < 0 or later.seconds_since(reading.at) > FRESH_S:
            break
        run.append(reading)
        pids = both
    return tuple(reversed(run)), pids
