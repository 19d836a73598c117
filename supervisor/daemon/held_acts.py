"""Decisions that wait for their commit before they are carried out: nothing is acted on before it is recorded.

On a disk whose commits take long, a stop or a kill waits `ACT_ANYWAY_S` at most. Both are safe to repeat, and a daemon
that dies before the commit decides them again or finds that the attempt ended; a training that hangs, or a gpu that is
too hot, costs more with each second.

Everything else waits `LAUNCH_ANYWAY_S`: a disk that has not answered by then may never answer, and a training that is
not launched loses more than its record. It is made once all the same: each attempt has a folder of its number, which
the next daemon finds (`lost_record.py`), and only one shim can hold the lock of a job. What is lost where the daemon
dies as well is what the rows say in addition: the remedies that were tried, the budget that was spent. A last resort
(resetting a gpu, rebooting) waits for its commit however long it takes: repeated without end, it would be a fault of
its own.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from supervisor.core import decisions as de
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.daemon.job_state import JobState

log = logging.getLogger(__name__)

ACT_ANYWAY_S = 1.0
"""Longest delay of a stop or a kill by a commit in progress. A commit takes milliseconds on a disk that works."""
LAUNCH_ANYWAY_S = 20.0
"""Longest delay of the other acts: a worn disk, or one in a bus reset, takes up to ten seconds and then answers."""


class Record(Protocol):
    """What is asked of the record."""

    @property
    def unsettled_turn(self) -> int | None:
        """The number of the last turn while its rows are on their way to the file; None where none are."""
        ...

    def is_settled(self, turn: int, now: Moment) -> bool:
        """Whether the rows of a turn are in the file, or cannot be written at present."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Act:
    """A decision to be carried out, with the job and the history as they were when it was made."""

    decision: de.Decision
    state: JobState
    job: Job
    history: History | None
    turn: int | None
    """The turn that recorded it; None where it waits for nothing."""
    since: Moment
    retried: bool = False
    """Whether there was no room to carry it out before."""
    recorded: bool = True
    """Whether it is in the file, or the file cannot be written, when it is carried out."""

    @property
    def repeatable(self) -> bool:
        """Whether it is safe to carry it out twice."""
        return isinstance(self.decision, de.Stop | de.Kill)

    @property
    def wait_limit_s(self) -> float:
        """How long it waits to be in the file."""
        if isinstance(self.decision, de.LastResort):
            return math.inf
        return ACT_ANYWAY_S if self.repeatable else LAUNCH_ANYWAY_S


class HeldActs:
    """The acts of all jobs, oldest first. Used in the deciding thread."""

    def __init__(self, record: Record, carry_out: Callable[[Act], None]) -> None:
        self._record = record
        self._carry_out = carry_out
        self._held: deque[Act] = deque()

    @property
    def holding(self) -> bool:
        """Whether an act waits for a commit; in any thread."""
        return bool(self._held)

    def take(self, decided: Iterable[tuple[de.Decision, JobState]], turn: int | None, now: Moment) -> None:
        """Hold what a turn decided until the turn is in the file."""
        self._held.extend(
            Act(decision=decision, state=state, job=state.job, history=state.history, turn=turn, since=now)
            for decision, state in decided
        )

    def take_back(self, act: Act) -> None:
        """Hold an act that could not be carried out now; it is tried again at the next release."""
        self._held.appendleft(replace(act, turn=None, retried=True))

    def release(self, now: Moment) -> None:
        """Carry out what is recorded by now, and what must not wait longer; the acts of one job keep their order."""
        waiting: set[str] = set()
        for act in tuple(self._held):
            recorded = act.turn is None or self._record.is_settled(act.turn, now)
            late = now.seconds_since(act.since) >= act.wait_limit_s
            if act.job.name in waiting or not (recorded or late):
                waiting.add(act.job.name)
                continue
            self._held.remove(act)
            if not recorded:
                decision = type(act.decision).__name__.lower()
                log.warning("act.before_commit", extra={"fields": {"job": act.job.name, "decision": decision}})
            self._carry_out(replace(act, recorded=recorded))
