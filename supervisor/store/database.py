"""The only connection that writes, and the classification of its failures.

SQLite before 3.51.3 can corrupt a WAL database when two connections write or checkpoint at once. So this is the only
writer, every reader opens `mode=ro`, and the file is not memory-mapped.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from supervisor.store import files
from supervisor.store.sql import Statement
from supervisor.store.statements import Kind
from supervisor.store.steps import Row
from supervisor.store.wal_index import open_index
from supervisor.store.write_queue import Pending

log = logging.getLogger(__name__)
BUSY_TIMEOUT_MS = 300
"""How long a commit waits for another process's lock."""
CACHE_KIB = 512
"""SQLite's page cache; its default of 2 MiB does not make commits faster."""
_FAULTY_ROW = (sqlite3.Error, OverflowError, UnicodeError, TypeError, ValueError)


class Failure(Enum):
    """Why the database cannot be used."""

    FULL = "full"
    LOCKED = "locked"
    DAMAGED = "damaged"
    OTHER = "other"


class UnusableError(Exception):
    """The database cannot be read or written at present."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


def _classify(text: str) -> Failure:
    """Classify a failure by SQLite's message: Python before 3.11 provides no error code."""
    if "disk is full" in text:
        return Failure.FULL
    if "locked" in text or "busy" in text:
        return Failure.LOCKED
    if "malformed" in text or "not a database" in text:
        return Failure.DAMAGED
    return Failure.OTHER


def _is_outage(error: BaseException) -> bool:
    """Whether the error was caused by the file and not by the row, so that the row may be retried."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


class Database:
    """An open database file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writable = False
        self._connection: sqlite3.Connection | None = None
        self._full_sync = False
        self.suspect = False
        """Whether a query has met what may be damage since the file was opened."""
        self._identity: files.Identity | None = None
        self._index = open_index(path)
        self._connected = 0
        """How often the file was opened for writing."""
        self._reading = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._reader_of: tuple[object, int | None] | None = None

    def connect(self) -> None:
        """Open the file for writing. If that fails, open it for reading and raise UnusableError with the reason."""
        self.close()
        self._connected += 1
        self.suspect = False
        try:
            with self._index.in_use():
                self._connection = self._open_writer()
            self.writable = True
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._connection = files.open_reader(self.path)
            raise UnusableError(_classify(str(error)), str(error)) from error
        finally:
            with suppress(OSError):
                self._identity = files.identity_with_wal(self.path)

    def save_wal(self) -> None:
        """Have what the open -wal file holds written into the open file, also where both are without a name by now."""
        self.close_reader()
        with suppress(UnusableError):
            self.pragma("wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file; what was not committed is discarded."""
        connection, self._connection, self.writable = self._connection, None, False
        if connection is not None:
            with self._index.in_use(), suppress(sqlite3.Error):
                connection.close()
        self._index.forget()

    @property
    def replaced(self) -> bool:
        """Whether path and -wal file no longer refer to the open ones, so that everything written would be lost."""
        try:
            return self._identity is not None and files.identity_with_wal(self.path) != self._identity
        except OSError:  # a disk that fails has replaced nothing
            return False

    def read(self, query: Statement) -> list[Row]:
        """Return the rows of a query. Raises UnusableError if they cannot be read."""
        try:
            with self._index.in_use():
                return read_rows(self._require_connection(), query)
        except sqlite3.Error as error:
            raise self._note_damage(error) from error

    def read_apart(self, query: Statement) -> list[Row]:
        """Return the rows of a query by a second connection, while another thread commits; in any thread.

        Raises UnusableError. The connection stays open: to open one, SQLite as root waits for a sync in progress, and
        on a disk that cannot be written none can be opened.
        """
        try:
            self._index.restore()
            with self._reading:
                # A file that was opened without a -wal file does not see what is written later.
                of = self._describe_file() or self._reader_of
                if self._reader is None or self._reader_of != of:
                    self._discard_reader()
                    self._reader = files.open_reader(self.path)
                    self._reader_of = of
                return read_rows(self._reader, query)
        except sqlite3.Error as error:
            raise self._note_damage(error) from error

    def _note_damage(self, error: sqlite3.Error) -> UnusableError:
        unusable = _build_unusable_error(error)
        # What is missing from a -wal file that was cut is an error of the disk to SQLite.
        self.suspect = self.suspect or unusable.failure is Failure.DAMAGED or "disk I/O error" in str(error)
        return unusable

    def _describe_file(self) -> tuple[object, int | None] | None:
        """Return what changes when a new connection would read something else; None where the disk does not tell."""
        try:
            return files.identity(self.path), None if files.has_wal(self.path) else self._connected
        except OSError:
            return None

    def close_reader(self) -> None:
        """Close the second connection."""
        with self._reading:
            self._discard_reader()

    def _discard_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(sqlite3.Error):
                reader.close()

    def write(self, pending: Pending) -> None:
        """Commit all pending rows in one transaction. Raises UnusableError if the file cannot be written.

        A row that SQLite rejects is dropped and logged, so that it does not block all later rows.
        """
        try:
            with self._transaction(durable=pending.durable) as connection:
                for kind, rows in pending.by_kind():
                    connection.executemany(kind.statement(tuple(rows[0])), rows)
        except _FAULTY_ROW as error:
            if _is_outage(error):
                raise _build_unusable_error(error) from error
            self._write_singly(pending)

    def change(self, *statements: Statement) -> int:
        """Run statements in one transaction and return the number of rows changed. Raises UnusableError."""
        try:
            with self._transaction(durable=False) as connection:
                return sum(connection.execute(*statement).rowcount for statement in statements)
        except sqlite3.Error as error:
            raise _build_unusable_error(error) from error

    def give_back(self, pages: int) -> None:
        """Return at most `pages` free pages to the file system. Raises UnusableError."""
        try:
            # As a script: `execute` would stop after one page, since this pragma has one step per page.
            with self._index.in_use():
                self._require_connection().executescript(f"PRAGMA incremental_vacuum({pages})")
        except sqlite3.Error as error:
            raise _build_unusable_error(error) from error

    def pragma(self, text: str) -> list[tuple[Any, ...]]:
        """Run a pragma to completion, outside of any transaction. Raises UnusableError."""
        try:
            with self._index.in_use():
                return list(self._require_connection().execute(f"PRAGMA {text}"))
        except sqlite3.Error as error:
            raise _build_unusable_error(error) from error

    def _open_writer(self) -> sqlite3.Connection:
        files.check_kind(self.path)
        raw = sqlite3.connect(files.uri(self.path, "mode=rw"), uri=True, isolation_level=None, check_same_thread=False)
        try:
            raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("PRAGMA synchronous = NORMAL")
            raw.execute("PRAGMA journal_size_limit = 16777216")
            raw.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            raw.execute("BEGIN IMMEDIATE")
            raw.execute("ROLLBACK")
        except sqlite3.Error:
            raw.close()
            raise
        self._full_sync = False
        return raw

    def _require_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise UnusableError(Failure.OTHER, "the database is not open")
        return self._connection

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        with self._index.in_use(), self._open_transaction(durable=durable) as connection:
            yield connection

    @contextmanager
    def _open_transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        connection = self._require_connection()
        if durable != self._full_sync:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._full_sync = durable
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            # SQLite has rolled back by itself after some errors.
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise

    def _write_singly(self, pending: Pending) -> None:
        try:
            with self._transaction(durable=pending.durable) as connection:
                for kind, rows in pending.by_kind():
                    for row in rows:
                        _write_or_drop(connection, kind, row)
        except sqlite3.Error as error:
            raise _build_unusable_error(error) from error


def _write_or_drop(connection: sqlite3.Connection, kind: Kind, row: Row) -> None:
    connection.execute("SAVEPOINT one_row")
    try:
        connection.execute(kind.statement(tuple(row)), row)
    except _FAULTY_ROW as error:
        if _is_outage(error):
            raise
        connection.execute("ROLLBACK TO one_row")
        log.error("store.row_dropped", extra={"fields": {"kind": kind.name, "error": type(error).__name__}})
    connection.execute("RELEASE one_row")


def read_rows(connection: sqlite3.Connection, query: Statement) -> list[Row]:
    """Return the rows of a query by the names of their columns. Raises sqlite3.Error."""
    found = connection.execute(*query)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def _build_unusable_error(error: BaseException) -> UnusableError:
    return UnusableError(_classify(str(error)), str(error))
