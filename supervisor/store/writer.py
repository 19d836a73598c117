"""The queue in front of the database: one commit a turn, and important rows kept while it cannot be written.

A commit takes what is queued and leaves an empty queue behind: with a commit thread, turns go on while it is written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from supervisor.core.moments import Moment
from supervisor.core.stats.log_limit import LogLimit
from supervisor.store.committer import LOG_AGAIN_S, Committer
from supervisor.store.database import Database, UnusableError
from supervisor.store.prune import Retention
from supervisor.store.sql import Statement
from supervisor.store.statements import Kind
from supervisor.store.steps import Row
from supervisor.store.write_queue import Pending

log = logging.getLogger(__name__)
FLUSH_S = 1.0
SLOW_COMMIT_S = 3.0
"""A commit that has not ended after this time is reported as a problem of the record."""
SILENT_COMMIT_S = 10.0
"""A disk that works answers sooner, however slow it is."""


@dataclass(slots=True, kw_only=True)
class _Commit:
    """Rows on their way into the file."""

    rows: Pending
    turn: int
    """The last turn whose rows are among them."""
    began: Moment
    written: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class Writer:
    """Queues rows and has them committed turn by turn. For one thread, but for what says otherwise."""

    def __init__(self, database: Database, now: Moment) -> None:
        self.now = now
        """The time of the newest turn or flush."""
        self._database = database
        self._committer = Committer(database, now)
        self._pending = Pending()
        self._turn: Pending | None = None
        self._commit: _Commit | None = None
        """The commit in progress."""
        self._moving = threading.Lock()
        """Held while rows move from one queue to the next."""
        self._turns = 0
        self._settled = 0
        self._urgent_turn = 0
        """The last turn with rows that are committed with it."""
        self._commit_ended = threading.Condition()
        self._committed_at = now
        self._run_beside: Callable[[Callable[[], None]], None] | None = None
        self._unreadable = LogLimit(LOG_AGAIN_S)
        """Of why the file cannot be read: it is asked some twice a second."""

    @property
    def problem(self) -> str | None:
        """Why nothing can be written at present, or how long a commit has taken by now; in any thread."""
        commit, now = self._commit, self.now
        if self._committer.problem is not None or commit is None or commit.ended.is_set():
            return self._committer.problem
        took_s = now.seconds_since(commit.began)
        if took_s < SLOW_COMMIT_S:
            return None
        waiting, given_up = len(self._pending), sum(self._pending.given_up.values())
        lost = f", {given_up} given up" if given_up else ""
        disk = "is slow" if took_s < SILENT_COMMIT_S else "does not answer"
        return f"the disk {disk}: a commit has not ended for {took_s:.0f} s; {waiting} rows wait{lost}"

    # --- rows to write --------------------------------------------------------------------------------------------

    def put(self, kind: Kind, key: Hashable, row: Row) -> None:
        """Queue the row of a key; a later row of that key is merged with it or replaces it."""
        self._active_queue.put(kind, key, row)

    def append(self, kind: Kind, row: Row) -> None:
        """Queue a row that no later one replaces."""
        self._active_queue.append(kind, row)

    def waiting(self, kind: Kind) -> list[Row]:
        """Return the rows of one kind that are not known to be in the file, oldest first; in any thread."""
        with self._moving:
            queues = (self._commit.rows if self._commit else None, self._pending, self._turn)
            return [row for queue in queues if queue is not None for row in queue.rows(kind)]

    @contextmanager
    def turn(self, now: Moment) -> Iterator[None]:
        """Commit the rows queued in the body together; if it raises, none of them is kept."""
        assert self._turn is None, "turns do not nest"
        self.now = now
        self._turn = Pending()
        try:
            yield
        except BaseException:
            self._turn = None
            raise
        with self._moving:
            done, self._turn = self._turn, None
            self._pending.take_over(done)
        self._turns += 1
        if done.urgent:
            self._urgent_turn = self._turns
        self.settle(now)
        if self._pending.urgent or now.seconds_since(self._committed_at) >= FLUSH_S:
            self._begin_commit(now)

    def flush(self, now: Moment) -> None:
        """Commit all queued rows; after a problem, try again."""
        self.now = now
        self.settle(now)
        self._begin_commit(now, flushing=True)

    def close(self, now: Moment) -> None:
        """Commit all queued rows for the last time and close the file; no commit may be in progress."""
        self._run_beside = None
        self._committer.retry_at_once(now)
        self.flush(now)
        self._committer.close()

    # --- a commit thread ------------------------------------------------------------------------------------------

    def commit_beside(self, run: Callable[[Callable[[], None]], None]) -> None:
        """Have commits run by `run` from now on, which returns at once and does one work after the other."""
        self._run_beside = run
        self.read(Statement("SELECT 1"))  # opens the connection for it

    @property
    def unsettled_turn(self) -> int | None:
        """The number of the last turn while its rows are on their way to the file; None where none are."""
        return self._turns if self._settled < self._turns else None

    def is_settled(self, turn: int, now: Moment) -> bool:
        """Whether the rows of a turn are in the file, or cannot be written at present."""
        self.settle(now)
        return self._settled >= turn

    @property
    def awaits_commit(self) -> bool:
        """Whether rows wait that are committed as soon as the commit in progress has ended; in any thread."""
        commit = self._commit
        return commit is not None and commit.turn < self._urgent_turn

    def await_urgent(self, limit_s: float) -> bool:
        """Wait until what turns by now had committed at once is in the file; for any thread but that of the turns.

        Return False where it is not there after `limit_s`, and at once where nothing can be written at present.
        """
        turn = self._urgent_turn

        def is_over() -> bool:
            return self._is_written(turn) or self.problem is not None

        with self._commit_ended:
            self._commit_ended.wait_for(is_over, limit_s)
        return self._is_written(turn)

    def _is_written(self, turn: int) -> bool:
        commit = self._commit
        ended = commit is not None and commit.ended.is_set() and commit.written and commit.turn >= turn
        return ended or (self._settled >= turn and self._committer.problem is None)

    def settle(self, now: Moment) -> None:
        """Take in the end of a commit, and begin the next one where rows wait that are urgent."""
        if self._commit is None or not self._commit.ended.is_set():
            return
        self._take_in(self._commit, now)
        if self._pending.urgent:
            self._begin_commit(now)

    # --- queries --------------------------------------------------------------------------------------------------

    def read(self, query: Statement) -> list[Row] | None:
        """Return the rows of a query over the file, None where it cannot be read; also during a commit."""
        try:
            return self._database.read(query) if self._run_beside is None else self._database.read_apart(query)
        except UnusableError as error:
            if self._unreadable.allows(str(error), self.now.monotonic_s):
                log.error("store.unreadable", extra={"fields": {"error": str(error)}})
            return None

    def remember_jobs(self, rows: Iterable[Row]) -> None:
        """Remember the jobs in the file, so that they can be written into a new one in its place."""
        self._committer.remember_jobs(rows)

    # --- deletions: in the commit thread, where there is one --------------------------------------------------------

    def forget_job(self, job: str, note_prefix: str, note: str) -> int:
        """Delete a job's rows, its notes by prefix, and `note`; return the rows deleted. Raises StoreError."""
        return self._committer.forget_job(job, note_prefix, note)

    def prune(self, now: Moment, retention: Retention, expiry_unix_s: float) -> int:
        """Delete a bounded number of expired rows; return the rows deleted."""
        return self._committer.prune(now, retention, expiry_unix_s)

    def forget(self, table: str, keys: Sequence[tuple[object, ...]]) -> int:
        """Delete the rows of these primary keys; return the rows deleted, 0 where the file cannot be written."""
        return self._committer.forget(table, keys, self.now)

    def drop_job(self, job: str, note_prefix: str) -> None:
        """Drop what is queued of a job, except its alerts."""
        self._pending.drop_job(job, note_prefix)

    # --- commits --------------------------------------------------------------------------------------------------

    @property
    def _active_queue(self) -> Pending:
        return self._pending if self._turn is None else self._turn

    def _begin_commit(self, now: Moment, *, flushing: bool = False) -> None:
        """Commit what is queued, or have it committed; while a commit is in progress, its end begins the next."""
        if self._commit is not None:
            return
        nothing_to_do = not len(self._pending) and self._committer.problem is None and not flushing
        if nothing_to_do or self._committer.is_waiting(now):
            self._settled = self._turns
            self._wake_waiting()
            return
        with self._moving:
            commit = self._commit = _Commit(rows=self._pending, turn=self._turns, began=now)
            self._pending = Pending()
        if self._run_beside is None:
            try:
                commit.written = self._committer.commit(commit.rows, now)
            finally:
                self._take_in(commit, now)
            return
        try:
            self._run_beside(partial(self._commit_beside, commit))
        except BaseException:  # no thread can be started: the rows wait for the next turn
            self._take_in(commit, now)
            raise

    def _take_in(self, commit: _Commit, now: Moment) -> None:
        """Queue the rows of a commit that failed again, before those that came since."""
        with self._moving:
            if commit.written:
                self._committed_at, self._settled = now, commit.turn
            else:
                commit.rows.take_over(self._pending)
                self._pending, self._settled = commit.rows, self._turns
            self._commit = None

    def _commit_beside(self, commit: _Commit) -> None:
        """Write the rows of a commit, in the commit thread."""
        try:
            commit.written = self._committer.commit(commit.rows, commit.began)
        except Exception as error:
            self._committer.note_failure(error, commit.began)
            raise
        finally:
            commit.ended.set()
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        with self._commit_ended:
            self._commit_ended.notify_all()
