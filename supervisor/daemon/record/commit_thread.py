"""The thread that writes the record: commits and deletions, one after the other, so that no turn waits for the disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TypeVar

from supervisor.core.moments import Moment
from supervisor.core.stats.histogram import Histogram
from supervisor.daemon.clock import Clock
from supervisor.daemon.threads import Threads
from supervisor.store.store import Store

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

COMMIT_LIMITS_S = (0.003, 0.03, 0.3, 3.0, 30.0)
CHANGE_LIMIT_S = 60.0
"""A deletion may read much of the file."""


class CommitThread:
    """Runs what changes the file; `begin` is called once, before the deciding thread turns."""

    def __init__(self, store: Store, threads: Threads, committed: Callable[[], None], clock: Clock) -> None:
        """`committed` is called in this thread after each commit."""
        self.took_s = Histogram(*COMMIT_LIMITS_S)
        """Of commits; in any thread."""
        self._store = store
        self._clock = clock
        self._committed = committed
        self._lane = threads.lane("record", "commits", of_job=False)

    def begin(self) -> None:
        """Have the store's commits made here from now on."""
        self._store.commit_beside(self._queue_commit)

    def _queue_commit(self, commit: Callable[[], None]) -> None:
        self._lane.do("committing", partial(self._run_commit, commit))

    def _run_commit(self, commit: Callable[[], None]) -> None:
        began = self._clock.now()
        try:
            commit()
        finally:
            self.took_s.observe(self._clock.now().seconds_since(began))
            self._committed()

    def change(self, what: str, work: Callable[[], object], key: Hashable = None) -> None:
        """Queue a change of the file; with a key it replaces what is queued under that key."""
        self._lane.do(what, lambda: _discard(work()), key=key, limit_s=CHANGE_LIMIT_S)

    def ask(self, what: str, work: Callable[[], Answer], limit_s: float) -> Answer:
        """Change the file and return the result; not for the deciding thread. Raises TimeoutError and what `work` does.

        A change that did not end in time is still made.
        """
        answer: Future[Answer] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)

        self._lane.do(what, run, limit_s=CHANGE_LIMIT_S)
        try:
            return answer.result(limit_s)
        except FutureTimeoutError as error:  # before Python 3.11 that is an error of its own
            raise TimeoutError(f"{what} has not ended within {limit_s:.0f} s") from error

    def close(self, now: Moment, limit_s: float) -> bool:
        """Commit what is left and close the file; return False where that did not end within the limit."""
        closed = threading.Event()

        def close() -> None:
            try:
                self._store.close(now)
            finally:
                closed.set()

        self._lane.do("closing the record", close)
        if closed.wait(limit_s):
            return True
        log.error("store.not_closed", extra={"fields": {"limit_s": limit_s, "problem": self._store.problem}})
        return False


def _discard(_: object) -> None:
    """The result is not used."""
