"""The inbox: every fact and every question enters the deciding thread here.

Steps and readings that are as they should be are judged by at the next tick. They wait for it, or for whatever comes
first that is judged at once, and wake nobody; the steps of one recorder that wait together become one event.
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

from supervisor.core.events import Event, GpusRead, HostRead, ProcessesRead, StepsMade
from supervisor.core.urgent import can_wait

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

STEPS_WEIGHED = 64
"""Taking in so many steps is as much work as deciding about one event."""
STEPS_TOGETHER = 1024
"""Steps that become one event at most: a turn takes them in without holding up a deadline."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to be answered by the deciding thread, between two events."""

    question: Callable[[], Any]
    answer: Future[Any]


class Inbox:
    """One queue, many writers, one reader. `put` never blocks and may be called from a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event | Inquiry] = queue.SimpleQueue()
        self._counting = threading.RLock()  # that of the thread itself, where a signal's handler interrupts it
        self._held: OrderedDict[Hashable, Event] = OrderedDict()
        """What waits for the next tick, oldest first; it comes before all that is put after it."""
        self._put: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def put(self, event: Event) -> None:
        """Add an event."""
        with self._counting:
            if (job := getattr(event, "job", None)) is not None:
                self._put[job] += weight_of(event)
            if not self._hold(event):
                self._enqueue(event)

    def waiting(self, job: str) -> int:
        """Return about how much of a job is in it; whoever reads a job's files reads on when that is little."""
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
        done.add_done_callback(_tell_failure)
        self._enqueue(Inquiry(work, done))

    def get(self, timeout_s: float) -> Event | Inquiry | None:
        """Return the next entry, or None where none came in time; what was held for a tick comes after the time."""
        try:
            entry = self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            self._release()
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return None
        if not isinstance(entry, Inquiry) and (job := getattr(entry, "job", None)) is not None:
            self._taken[job] += weight_of(entry)
        return entry

    def empty(self) -> bool:
        """Whether nothing is in it at this moment."""
        return self._queue.empty() and not self._held

    def _hold(self, event: Event) -> bool:
        """Have an event wait for the next tick; return whether it may."""
        match event:
            case GpusRead() | HostRead() | ProcessesRead():
                self._held[id(event)] = event
                return True
            case StepsMade() if can_wait(event):
                key = (event.job, event.attempt, event.rank)
                held = self._held.get(key)
                if isinstance(held, StepsMade):
                    if (both := _together(held, event)) is None:
                        return False
                    self._put[event.job] += weight_of(both) - weight_of(held) - weight_of(event)
                    event = both
                self._held[key] = event
                return True
            case _:
                return False

    def _enqueue(self, entry: Event | Inquiry) -> None:
        with self._counting:
            self._release()
            self._queue.put(entry)

    def _release(self) -> None:
        """Let go of what was held, in its order; a signal's handler may come in between and do so, too."""
        with self._counting:
            while self._held:
                try:
                    _, event = self._held.popitem(last=False)
                except KeyError:
                    return
                self._queue.put(event)


def _together(earlier: StepsMade, later: StepsMade) -> StepsMade | None:
    """Return the steps of two readings of a recorder as one; None where that would hide that some were lost."""
    if later.lost or len(earlier.records) + len(later.records) > STEPS_TOGETHER:
        return None
    return replace(later, records=earlier.records + later.records, lost=earlier.lost)


def weight_of(event: Event) -> int:
    """Return how much work an event is: one, and one more for each so many steps."""
    return 1 + len(event.records) // STEPS_WEIGHED if isinstance(event, StepsMade) else 1


def _tell_failure(done: Future[Any]) -> None:
    """Log why work failed that no caller waits for."""
    if (error := done.exception()) is not None:
        log.error("inbox.work_failed", exc_info=error)
