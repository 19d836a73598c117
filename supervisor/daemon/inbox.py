"""The inbox: every fact and every question enters the deciding thread here; it keeps order and judges nothing."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, TypeVar

from supervisor.core.events import Event

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to be answered by the deciding thread, between two events."""

    question: Callable[[], Any]
    answer: Future[Any]


class Inbox:
    """One queue, many writers, one reader. `put` never blocks and may be called from a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event | Inquiry] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        """Add an event."""
        self._queue.put(event)

    def ask(self, question: Callable[[], Answer], limit_s: float = 5.0) -> Answer:
        """Have the deciding thread answer `question`; raise TimeoutError where it does not within `limit_s`."""
        answer: Future[Answer] = Future()
        self._queue.put(Inquiry(question, answer))
        try:
            return answer.result(limit_s)
        except FutureTimeoutError as error:  # before Python 3.11 that is an error of its own
            raise TimeoutError(f"the daemon's loop did not answer within {limit_s:.0f} s") from error

    def later(self, work: Callable[[], Any]) -> None:
        """Have the deciding thread do `work` between two events, without waiting; for signal handlers too."""
        done: Future[Any] = Future()
        done.add_done_callback(_tell_failure)
        self._queue.put(Inquiry(work, done))

    def get(self, timeout_s: float) -> Event | Inquiry | None:
        """Return the next entry, or None where none came in time."""
        try:
            return self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def empty(self) -> bool:
        """Whether nothing is in it at this moment."""
        return self._queue.empty()


def _tell_failure(done: Future[Any]) -> None:
    """Log why work failed that nobody waits for."""
    if (error := done.exception()) is not None:
        log.error("inbox.work_failed", exc_info=error)
