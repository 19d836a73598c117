"""The queue in front of the database: one commit a turn, and important rows kept while it cannot be written."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from supervisor.core.moments import Moment
from supervisor.store import files, prune
from supervisor.store.database import Database, Failure, UnusableError
from supervisor.store.errors import StoreError
from supervisor.store.opening import prepare, renew
from supervisor.store.statements import JOB, Kind
from supervisor.store.steps import Row
from supervisor.store.write_queue import Pending

if TYPE_CHECKING:
    from sqlalchemy import Executable, Table

log = logging.getLogger(__name__)
RETRY_S = 2.0
FLUSH_S = 1.0
SHED_S = 60.0


class Writer:
    """Queues rows, commits them turn by turn, and retries failed commits."""

    def __init__(self, database: Database, now: Moment) -> None:
        self.problem: str | None = None
        """Why nothing can be written at present."""
        self.now = now
        """The time of the newest turn or flush."""
        self._database = database
        self._ballast = files.Ballast(database.path)
        self._pending = Pending()
        self._turn: Pending | None = None
        self._jobs: dict[Hashable, Row] = {}
        self._committed_at = now
        self._retry_at = now
        self._shed_at: Moment | None = None
        self._connect(now)

    # --- rows to write --------------------------------------------------------------------------------------------

    def put(self, kind: Kind, key: Hashable, row: Row) -> None:
        """Queue the row of a key; a later row of that key is merged with it or replaces it."""
        self._active_queue.put(kind, key, row)

    def append(self, kind: Kind, row: Row) -> None:
        """Queue a row that no later one replaces."""
        self._active_queue.append(kind, row)

    def waiting(self, kind: Kind) -> list[Row]:
        """Return the rows of one kind that are not in the file yet, oldest first."""
        return self._pending.rows(kind) + (self._turn.rows(kind) if self._turn else [])

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
        done, self._turn = self._turn, None
        self._pending.take_over(done)
        if self._pending.urgent or now.seconds_since(self._committed_at) >= FLUSH_S:
            self._commit(now)

    def flush(self, now: Moment) -> None:
        """Commit all queued rows; after a problem, try again."""
        self.now = now
        self._commit(now)

    def close(self, now: Moment) -> None:
        """Commit all queued rows for the last time and close the file."""
        self._retry_at = now
        self.flush(now)
        self._database.close()

    def remember_jobs(self, rows: Iterable[Row]) -> None:
        """Remember the jobs in the file, so that they can be written into a new one in its place."""
        for row in rows:
            self._jobs.setdefault(row["name"], row)

    # --- queries --------------------------------------------------------------------------------------------------

    def read(self, query: Executable) -> list[Row] | None:
        """Return the rows of a query over the file, None where it cannot be read."""
        try:
            return self._database.read(query)
        except UnusableError as error:
            log.error("store.unreadable", extra={"fields": {"error": str(error)}})
            return None

    def forget_job(self, job: str, note_prefix: str, note: str) -> int:
        """Delete a job's rows, its notes by prefix, and `note`; return the rows deleted. Raises StoreError."""
        self.flush(self.now)
        if self.problem is not None:
            raise StoreError(f"nothing can be deleted at present: {self.problem}")
        try:
            deleted = self._database.change(*prune.rows_of_job(job, note_prefix, note))
        except UnusableError as error:
            raise StoreError(f"nothing was deleted: {error}") from error
        self._jobs.pop(job, None)
        return deleted

    def prune(self, now: Moment, retention: prune.Retention) -> int:
        """Delete a bounded number of expired rows; return the rows deleted."""
        if self.problem is not None:
            return 0
        try:
            deleted = prune.prune(self._database, now.unix_s, retention)
        except UnusableError as error:
            log.warning("store.prune_failed", extra={"fields": {"error": str(error)}})
            return 0
        self._ballast.take()
        return deleted

    def forget(self, table: Table, keys: Sequence[tuple[object, ...]]) -> int:
        """Delete the rows of these primary keys; return the rows deleted, 0 where the file cannot be written."""
        if self.problem is not None:
            return 0
        try:
            return self._database.change(prune.delete_rows(table, keys))
        except UnusableError as error:
            log.warning("store.prune_failed", extra={"fields": {"error": str(error)}})
            return 0

    # --- commits and retries ---------------------------------------------------------------------------------------

    @property
    def _active_queue(self) -> Pending:
        return self._pending if self._turn is None else self._turn

    def _commit(self, now: Moment) -> None:
        self._jobs.update((row["name"], row) for row in self._pending.rows(JOB))
        if self.problem is not None and now.seconds_since(self._retry_at) < 0:
            return
        if self._database.replaced and not self._repair(now, self._reopen_replaced):
            return
        if not len(self._pending) and self.problem is None:
            return
        if self.problem is not None and not self._connect(now):
            return
        try:
            self._database.write(self._pending)
        except UnusableError as error:
            if not self._retry_commit(error, now):
                self._record_failure(error, now)
                return
        self._record_success(now)

    def _retry_commit(self, error: UnusableError, now: Moment) -> bool:
        """Handle a failed commit and retry it once; return whether that wrote it."""
        if error.failure is Failure.FULL:
            self._make_room(now)
        elif error.failure is not Failure.DAMAGED or not self._repair(
            now, lambda: self._renew_database(str(error), now)
        ):
            return False
        try:
            self._database.write(self._pending)
        except UnusableError:
            return False
        return True

    def _make_room(self, now: Moment) -> None:
        """Release the ballast, then delete the oldest samples: their pages take new rows where the file cannot grow."""
        if self._ballast.release():
            log.warning("store.ballast_released", extra={"fields": {"bytes": files.BALLAST_BYTES}})
        if self._shed_at is not None and now.seconds_since(self._shed_at) < SHED_S:
            return
        self._shed_at = now
        try:
            self._database.pragma("wal_checkpoint(TRUNCATE)")
            deleted = prune.shed_samples(self._database)
        except UnusableError:
            return
        log.warning("store.samples_shed", extra={"fields": {"rows": deleted}})

    def _renew_database(self, why: str, now: Moment) -> None:
        self._database.close()
        renew(self._database.path, now.unix_s, why)
        self._database.connect()

    def _reopen_replaced(self) -> None:
        """Open the file that replaced a moved or deleted one, or create a new one."""
        log.error("store.file_replaced", extra={"fields": {"file": str(self._database.path)}})
        self._database.close()
        prepare(self._database.path, self.now.unix_s)
        self._database.connect()

    def _repair(self, now: Moment, remedy: Callable[[], None]) -> bool:
        """Get a usable file and queue every job again, since it may contain none; return whether that worked."""
        try:
            remedy()
        except (StoreError, UnusableError, OSError, sqlite3.Error, SQLAlchemyError) as error:
            self._record_failure(error, now)
            return False
        waiting = {row["name"] for row in self._pending.rows(JOB)}
        for name, row in self._jobs.items():
            if name not in waiting:
                self._pending.put(JOB, name, row)
        return True

    def _connect(self, now: Moment) -> bool:
        if self._database.writable and self.problem is None:
            return True
        try:
            self._database.connect()
        except UnusableError as error:
            self._record_failure(error, now)
            return False
        self._ballast.take()
        return True

    def _record_failure(self, error: Exception, now: Moment) -> None:
        self._retry_at = now.plus(RETRY_S)
        if self.problem is None:
            fields = {"file": str(self._database.path), "error": str(error), "waiting": len(self._pending)}
            log.error("store.unwritable", extra={"fields": fields})
        self.problem = str(error)

    def _record_success(self, now: Moment) -> None:
        if self.problem is not None:
            fields = {"rows": len(self._pending), "given_up": dict(self._pending.given_up)}
            log.warning("store.writable_again", extra={"fields": fields})
        self._pending.clear()
        self._pending.given_up.clear()
        self._committed_at = now
        self.problem = None
