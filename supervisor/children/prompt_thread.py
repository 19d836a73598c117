"""A thread that begins at once or not at all: starting it never waits for one that has already died.

`threading.Thread.start` waits, without a limit, for the new thread's first line. Where the last memory of this process
went to its stack, the thread raises MemoryError before that line, and who started it waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar


class PromptThread(threading.Thread):
    """A daemon thread whose `start` raises MemoryError if it does not begin within `BEGIN_LIMIT_S`.

    Then it never does its work, not even where it begins later.
    """

    BEGIN_LIMIT_S: ClassVar[float] = 2.0
    """A thread begins within milliseconds; on a machine under load it is a matter of its turn."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._do_work = work
        self._lock = threading.Lock()
        self._begun = self._abandoned = False
        self._started = _Begun(self.BEGIN_LIMIT_S)

    def start(self) -> None:
        """Start it; raise MemoryError or RuntimeError where there was no room for it."""
        try:
            super().start()
        except MemoryError:
            with self._lock:
                self._abandoned = not self._begun
            if self._abandoned:
                raise

    def run(self) -> None:
        """Do the work, unless whoever started it has given it up."""
        with self._lock:
            self._begun = not self._abandoned
        if self._begun:
            self._do_work()


class _Begun(threading.Event):
    """Set by a thread's first line; waiting for it has a limit."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self._limit_s = limit_s

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the limit at most; raise MemoryError where the thread has not begun by then."""
        if not super().wait(self._limit_s if timeout is None else timeout):
            raise MemoryError("a thread ended before its first line: this process has no memory left")
        return True


def ends_within(limit_s: float, name: str, work: Callable[[], object]) -> bool:
    """Do some work in a thread of its own and wait for it, for `limit_s` at most; return whether it has ended."""
    thread = PromptThread(work, name)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()
