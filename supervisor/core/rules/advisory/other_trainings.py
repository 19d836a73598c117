"""Other trainings: several programs of one job train, and only one of them is followed.

The agent of the first that trains has the flight recorder. A further one, as of `a.py & b.py`, GNU parallel or mpirun,
reports that it trains and no more: its steps, losses and stages are not seen, so that nothing warns where it hangs or
its loss becomes NaN. That it is gone is seen. Where the job ends with status 0 and one of them did not come to its own
end, the job has finished all the same, for its program may know why; the reason of the finish names it.

Processes that one interpreter of the job has started belong to one program, as those of multiprocessing, torchrun or a
sweep. Ranks that the environment numbers (`RANK`) are followed each, and are one training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, event_gauge, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History

NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTrainings:
    """A program that trains besides the one that is followed, or that was lost before the job ended with status 0."""

    name: ClassVar[str] = "other_trainings"
    group: ClassVar[Group] = "process"
    enabled: bool = True

    def may_flag(self, history: History) -> bool:
        """Whether a process trains that is not followed."""
        reports = history.reports
        return len(reports.trainers) > 1 and not reports.trainers.keys() <= set(reports.rank_pids.values())

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return whether there are several programs that train; no number is near to that."""
        what = "a further program trains, and is not followed"
        if not self.may_flag(history):
            return not_applicable(what, "each process that trains is followed")
        if history.over and (history.exit is None or not history.exit.clean):
            return not_applicable(what, ATTEMPT_ENDED)
        return (event_gauge(what, _observe_lost(history) if history.over else _observe_running(history)),)


def _observe_running(history: History) -> Observation | None:
    newest = history.newest_processes
    if newest is None or not newest.pids or not newest.parents:
        return None
    others = _list_others(history, dict(newest.parents))
    followed = [pid for pid in history.reports.rank_pids.values() if pid in newest.pids]
    if not others or not followed:
        return None
    which = f"process {min(followed)}" if len(followed) == 1 else f"processes {_name(followed)}"
    return Observation(
        message=f"{len(set(others.values())) + 1} trainings run in this job and only that of {which} is followed: of "
        f"processes {_name(others)} neither steps nor losses are seen",
        subject="running",
        diagnosis=SEVERAL,
    )


def _observe_lost(history: History) -> Observation | None:
    """Return which training was lost though the job ended with status 0; a later one may have been followed then."""
    parents: dict[int, int] = {}
    for reading in history.processes:
        parents |= dict(reading.parents)
    raised = {item.pid for item in history.raised}
    trainers = {pid: trainer for pid, trainer in history.reports.trainers.items() if pid in parents}
    if len({_find_program(history, pid, parents) for pid in trainers}) < 2:
        return None
    lost = [
        pid
        for pid, trainer in trainers.items()
        if pid != history.training_pid and (not trainer.ended or trainer.error or pid in raised)
    ]
    if not lost:
        return None
    which = f"that of process {_name(lost)} did not come to its"
    which = which if len(lost) == 1 else f"those of processes {_name(lost)} did not come to their"
    return Observation(
        message=f"the job ended with status 0, but of its trainings {which} own end: killed or crashed",
        subject="lost",
        diagnosis=SEVERAL,
    )


def _list_others(history: History, parents: Mapping[int, int]) -> dict[int, int]:
    """Return the processes of further programs that train, each with the first process of its program."""
    reports = history.reports
    followed = set(reports.rank_pids.values())
    own = {_find_program(history, pid, parents) for pid in followed}
    found = {pid: _find_program(history, pid, parents) for pid in reports.trainers if pid not in followed}
    return {pid: program for pid, program in found.items() if pid in parents and program not in own}


def _find_program(history: History, pid: int, parents: Mapping[int, int]) -> int:
    """Return the outermost interpreter with the agent that a process descends from, or itself."""
    found = at = pid
    for _ in range(len(parents)):  # a tree that was read while it changed may have a circle
        if at not in parents:
            break
        at = parents[at]
        if at in history.reports.interpreters or at in history.reports.trainers:
            found = at
    return found


def _name(pids: Iterable[int]) -> str:
    numbers = sorted(pids)
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return ", ".join(map(str, numbers[:NAMED])) + more


SEVERAL = Diagnosis(
    ruled_out=("not the processes of one program: no interpreter of the job has started both",),
    causes=(
        "the job's command starts several trainings at once (`&`, xargs, GNU parallel)",
        "ranks of one training whose environment does not number them, as under mpirun",
    ),
    advice=(
        "make each training a job of its own; start the ranks of one with RANK and WORLD_SIZE set, as torchrun does",
    ),
)
