"""The inbox: every event and every question reaches the deciding thread through it.

Unremarkable steps and readings are judged at the next tick. They are held until then, or until an event comes that is
judged at once, without waking the thread; the steps of one recorder that are held together become one event.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from supervisor.core.events import Event, GpusRead, HostRead, PeerStageSeen, PeerWaitsSeen, ProcessesRead, StepsMade
from supervisor.core.judge import can_wait

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

STEPS_WEIGHED = 64
"""Steps whose processing costs as much as one decision."""
STEPS_TOGETHER = 1024
"""Most steps in one event, so that a turn does not hold up a deadline."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to be answered by the deciding thread, between two events."""

    question: Callable[[], Any]
    answer: Future[Any]


class Inbox:
    """One queue, many writers, one reader. `put` never blocks and may be called from a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event | Inquiry] = queue.SimpleQueue()
        self._counting = threading.RLock()  # reentrant: a signal handler may interrupt its own thread
        self._held: OrderedDict[Hashable, Event] = OrderedDict()
        """Events held for the next tick, oldest first; they come before all that is put after them."""
        self._put: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def put(self, event: Event) -> None:
        """Add an event."""
        with self._counting:
            if (job := getattr(event, "job", None)) is not None:
                self._put[job] += weight_of(event)
            if not self._hold_for_tick(event):
                self._enqueue(event)

    def waiting(self, job: str) -> int:
        """Return about how much work of a job is queued; the readers of its files pause while that is much."""
        return self._put[job] - self._taken[job]

    def ask(self, question: Callable[[], Answer], limit_s: float = 5.0) -> Answer:
        """Have the deciding thread answer `question`; raise TimeoutError where it does not within `limit_s`."""
        answer: Future[Answer] = Future()
        self._enqueue(Inquiry(question, answer))
        try:
            return answer.result(limit_s)
        except FutureTimeoutError as error:  # before Python 3.11 that is an error of its own
            raise TimeoutError(f"the daemon's loop did not answer within {limit_s:.0f} s") from error

    def later(self, work: Callable[[], Any]) -> None:
        """Have the deciding thread do `work` between two events, without waiting; for signal handlers too."""
        done: Future[Any] = Future()
        done.add_done_callback(_log_failure)
        self._enqueue(Inquiry(work, done))

    def get(self, timeout_s: float) -> Event | Inquiry | None:
        """Return the next entry, or None where none came in time; what was held for a tick comes after the time."""
        try:
            entry = self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            self._release_held()
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return None
        if not isinstance(entry, Inquiry) and (job := getattr(entry, "job", None)) is not None:
            self._taken[job] += weight_of(entry)
        return entry

    @property
    def queued(self) -> bool:
        """Whether an entry is queued, besides what is held for the next tick."""
        return not self._queue.empty()

    def empty(self) -> bool:
        """Whether nothing is in it at this moment."""
        return self._queue.empty() and not self._held

    def _hold_for_tick(self, event: Event) -> bool:
        """Hold an event for the next tick; return False where it has to be judged at once."""
        match event:
            case GpusRead() | HostRead() | ProcessesRead():
                self._held[id(event)] = event
                return True
            case PeerWaitsSeen() | PeerStageSeen():
                peers = (type(event), event.job, event.attempt)
                if (older := self._held.pop(peers, None)) is not None:  # it comes with each answer of the leader
                    self._put[event.job] -= weight_of(older)
                self._held[peers] = event
                return True
            case StepsMade() if can_wait(event):
                key = (event.job, event.attempt, event.rank)
                held = self._held.get(key)
                if isinstance(held, StepsMade):
                    if (both := _merge_steps(held, event)) is None:
                        return False
                    self._put[event.job] += weight_of(both) - weight_of(held) - weight_of(event)
                    event = both
                self._held[key] = event
                return True
            case _:
                return False

    def _enqueue(self, entry: Event | Inquiry) -> None:
        with self._counting:
            self._release_held()
            self._queue.put(entry)

    def _release_held(self) -> None:
        """Queue what was held, in its order; a signal handler may interrupt this and do the same."""
        with self._counting:
            while self._held:
                try:
                    _, event = self._held.popitem(last=False)
                except KeyError:
                    return
                self._queue.put(event)


def _merge_steps(earlier: StepsMade, later: StepsMade) -> StepsMade | None:
    """Return the steps of two readings of a recorder as one event; None where that would hide lost steps."""
    if later.lost or len(earlier.records) + len(later.records) > STEPS_TOGETHER:
        return None
    return replace(later, records=earlier.records + later.records, lost=earlier.lost)


def weight_of(event: Event) -> int:
    """Return how much work an event is: 1, plus 1 for every STEPS_WEIGHED steps."""
    return 1 + len(event.records) // STEPS_WEIGHED if isinstance(event, StepsMade) else 1


def _log_failure(done: Future[Any]) -> None:
    """Log why work failed that no caller waits for."""
    if (error := done.exception()) is not None:
        log.error("inbox.work_failed", exc_info=error)
