"""Threads that take one piece of work after the other, so that there are as many as there is work under way.

Work that hangs keeps its thread; where a most is given, what comes beyond it waits for one of them.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from supervisor.children.prompt_thread import PromptThread

T = TypeVar("T")

IDLE_S = 5.0
"""A thread without work ends after this time."""
IDLE_AT_MOST = 2
"""What one after the other needs a thread has one ready; a crowd leaves no more behind."""
NO_THREAD = "can't start new thread"
"""Python's message if the system refuses a thread."""


def is_without_room(error: BaseException) -> bool:
    """Whether an error says that there is no room for another thread, or no memory."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_THREAD in str(error))


class WorkerThreads:
    """The threads and their queue; nothing waits for them when the process ends."""

    def __init__(self, name: str, at_most: float = math.inf) -> None:
        self._name = name
        self.at_most = at_most
        self._waiting: deque[tuple[Future[Any], Callable[[], Any], str]] = deque()
        self._threads = self._idle = 0
        self._changed = threading.Condition()

    def do(self, work: Callable[[], T], name: str | None = None) -> Future[T]:
        """Have `work` done and return what will hold its result; cancelled before it began, it is left out.

        Raises RuntimeError or MemoryError where it needs another thread, and the machine has no room for one.
        """
        done: Future[T] = Future()
        queued = (done, work, name or self._name)
        with self._changed:
            self._waiting.append(queued)
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self.at_most:
                try:
                    PromptThread(self._work, self._name).start()
                except (RuntimeError, MemoryError):
                    self._waiting.remove(queued)
                    raise
                self._threads += 1
        return done

    def _work(self) -> None:
        this = threading.current_thread()
        while (taken := self._take()) is not None:
            done, work, this.name = taken
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:  # noqa: BLE001 - whoever waits for the result gets it
                    done.set_exception(error)
            del taken, done, work
            this.name = self._name

    def _take(self) -> tuple[Future[Any], Callable[[], Any], str] | None:
        with self._changed:
            if not self._waiting and self._idle < IDLE_AT_MOST:
                self._idle += 1
                self._changed.wait(IDLE_S)
                self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None
