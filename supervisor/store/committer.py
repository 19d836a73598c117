"""Writes a queue of rows into the file: one commit, with its retries, repairs and ballast.

Used by one thread at a time: the one that reads the queue, or the commit thread once there is one.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Sequence

from supervisor.core.moments import Moment
from supervisor.core.stats.log_limit import LogLimit
from supervisor.store import files, prune
from supervisor.store.database import Database, Failure, UnusableError
from supervisor.store.errors import StoreError
from supervisor.store.opening import prepare, renew
from supervisor.store.rollup import Rollup
from supervisor.store.statements import JOB
from supervisor.store.steps import Row
from supervisor.store.write_queue import Pending

log = logging.getLogger(__name__)
RETRY_S = 2.0
SHED_S = 60.0
CHECK_S = 600.0
"""The check of a file reads all of it."""
LOG_AGAIN_S = 600.0
"""How long the reason why something cannot be done with the file is not logged again."""


class Committer:
    """The file as it is written; after a failed commit it waits before it tries again."""

    def __init__(self, database: Database, now: Moment) -> None:
        self.problem: str | None = None
        """Why nothing can be written at present."""
        self._database = database
        self._ballast = files.Ballast(database.path)
        self._jobs: dict[Hashable, Row] = {}
        self._retry_at = now
        self._shed_at: Moment | None = None
        self._checked_at: Moment | None = None
        self._rollup = Rollup()
        self._log_limit = LogLimit(LOG_AGAIN_S)
        self._connect(now)

    def is_waiting(self, now: Moment) -> bool:
        """Whether a commit failed and is not tried again yet."""
        return self.problem is not None and now.seconds_since(self._retry_at) < 0

    def retry_at_once(self, now: Moment) -> None:
        """Try the next commit without waiting."""
        self._retry_at = now

    def remember_jobs(self, rows: Iterable[Row]) -> None:
        """Remember the jobs in the file, so that they can be written into a new one in its place."""
        for row in rows:
            self._jobs.setdefault(row["name"], row)

    def commit(self, rows: Pending, now: Moment) -> bool:
        """Write all rows in one transaction; return whether nothing is left to write. Errors of the file raise nothing.

        Where a new file takes the place of a lost one, the jobs that it lacks are added to `rows`.
        """
        self._jobs.update((row["name"], row) for row in rows.rows(JOB))
        if self.is_waiting(now):
            return False
        if self._is_to_be_reopened(now) and not self._repair(rows, now, lambda: self._reopen(now)):
            return False
        if not len(rows) and self.problem is None:
            return True
        if self.problem is not None and not self._connect(now):
            return False
        try:
            self._database.write(rows)
        except UnusableError as error:
            if not self._retry_commit(rows, error, now):
                self.note_failure(error, now)
                return False
        self._rollup.note_written(rows)
        self._note_success(rows)
        return True

    def forget_job(self, job: str, note_prefix: str, note: str) -> int:
        """Delete a job's rows, its notes by prefix, and `note`; return the rows deleted. Raises StoreError."""
        if self.problem is not None:
            raise StoreError(f"nothing can be deleted at present: {self.problem}")
        try:
            deleted = self._database.change(*prune.rows_of_job(job, note_prefix, note))
        except UnusableError as error:
            raise StoreError(f"nothing was deleted: {error}") from error
        self._jobs.pop(job, None)
        return deleted

    def prune(self, now: Moment, retention: prune.Retention, expiry_unix_s: float) -> int:
        """Aggregate old rows into coarser ones, then delete a bounded number of expired ones; return how many.

        Ages are reckoned from `expiry_unix_s`.
        """
        if self.problem is not None:
            return 0
        try:
            self._rollup.run(self._database, now.unix_s)
        except UnusableError as error:  # charts become slow, but without a deletion the file would grow without end
            self._warn("store.rollup_failed", error, now)
        try:
            deleted = prune.prune(self._database, expiry_unix_s, retention)
        except UnusableError as error:
            self._warn("store.prune_failed", error, now)
            return 0
        self._ballast.take()
        return deleted

    def forget(self, table: str, keys: Sequence[tuple[object, ...]], now: Moment) -> int:
        """Delete the rows of these primary keys; return the rows deleted, 0 where the file cannot be written."""
        if self.problem is not None:
            return 0
        try:
            return self._database.change(*prune.delete_rows(table, keys))
        except UnusableError as error:
            self._warn("store.prune_failed", error, now)
            return 0

    def close(self) -> None:
        """Close the file."""
        self._database.close_reader()
        self._database.close()

    def note_failure(self, error: Exception, now: Moment) -> None:
        """Keep why nothing can be written, and until when no commit is tried."""
        self._retry_at = now.plus(RETRY_S)
        text = str(error) or type(error).__name__
        if self.problem is None:
            log.error("store.unwritable", extra={"fields": {"file": str(self._database.path), "error": text}})
        self.problem = text

    def _warn(self, event: str, error: UnusableError, now: Moment) -> None:
        """Log what failed, where it has not failed for the same reason lately: it is tried again and again."""
        if self._log_limit.allows(f"{event} {error}", now.monotonic_s):
            log.warning(event, extra={"fields": {"error": str(error)}})

    def _retry_commit(self, rows: Pending, error: UnusableError, now: Moment) -> bool:
        """Handle a failed commit and retry it once; return whether that wrote it."""
        if error.failure is Failure.FULL:
            self._make_room(now)
        elif error.failure is not Failure.DAMAGED or not self._repair(
            rows, now, lambda: self._renew_database(str(error), now)
        ):
            return False
        try:
            self._database.write(rows)
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

    def _is_to_be_reopened(self, now: Moment) -> bool:
        """Whether a file was moved, deleted or replaced, or a query has met damage that commits may not meet."""
        if self._database.replaced:
            log.error("store.file_replaced", extra={"fields": {"file": str(self._database.path)}})
            return True
        checked = self._checked_at
        if not self._database.suspect or (checked is not None and now.seconds_since(checked) < CHECK_S):
            return False
        self._checked_at = now
        return True

    def _reopen(self, now: Moment) -> None:
        """Open the file that is there now, or create a new one; what waits in a deleted -wal file is saved first."""
        self._database.save_wal()
        self._database.close()
        prepare(self._database.path, now.unix_s)
        self._database.connect()

    def _repair(self, rows: Pending, now: Moment, remedy: Callable[[], None]) -> bool:
        """Get a usable file and queue every job again, since it may contain none; return whether that worked."""
        try:
            remedy()
        except (StoreError, UnusableError, OSError, sqlite3.Error) as error:
            self.note_failure(error, now)
            return False
        waiting = {row["name"] for row in rows.rows(JOB)}
        for name, row in list(self._jobs.items()):  # the deciding thread may remember more of them meanwhile
            if name not in waiting:
                rows.put(JOB, name, row)
        return True

    def _connect(self, now: Moment) -> bool:
        if self._database.writable and self.problem is None:
            return True
        try:
            self._database.connect()
        except UnusableError as error:
            self.note_failure(error, now)
            return False
        self._ballast.take()
        return True

    def _note_success(self, rows: Pending) -> None:
        fields = {"rows": len(rows), "given_up": dict(rows.given_up)}
        if self.problem is not None:
            log.warning("store.writable_again", extra={"fields": fields})
        elif rows.given_up:
            log.warning("store.rows_given_up", extra={"fields": fields})
        self.problem = None
