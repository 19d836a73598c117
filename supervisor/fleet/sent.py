"""What a node has sent to the fleet's database, in a file of its own: where to go on, and which version of each row.

A version is on the disk before it is sent: a copy whose answer was lost is sent again as the same version, which the
database then has already. Without the file everything is sent again, as newer versions of the same rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

_TABLES = """
CREATE TABLE IF NOT EXISTS cursors (name TEXT PRIMARY KEY, position INTEGER NOT NULL, at_unix_s REAL NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS versions (name TEXT, key TEXT, version INTEGER NOT NULL, digest BLOB NOT NULL,
    restless BLOB NOT NULL, read_unix_s REAL NOT NULL, sent INTEGER NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
FOLDER, FILE = "fleet", "sent.db"
"""Where it lies in the state directory."""
NEXT_VERSION = "next version"
PASSED = "passed"
"""The fact of when the record was last copied completely."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a table that was sent."""

    position: int
    """Its id, or the beginning of its minute in Unix seconds."""
    at_unix_s: float


START = Cursor(-1, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A row of the node's record, to be compared with what was sent of it."""

    key: str
    digest: bytes
    """Of the columns in which a change is sent at once."""
    restless: bytes
    """Of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A row as it was last given a version."""

    key: str
    version: int
    digest: bytes
    restless: bytes
    read_unix_s: float
    sent: bool


class Sent:
    """The file. Raises sqlite3.Error where it cannot be read or written."""

    def __init__(self, path: Path, now_unix_s: float) -> None:
        # One thread at a time, not always the same.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_TABLES)
        # Greater than every version that a file before this one can have counted to.
        first = (NEXT_VERSION, str(int(now_unix_s * 1000)))
        self._connection.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", first)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def cursor(self, name: str) -> Cursor:
        """Return where a table was left."""
        found = self._connection.execute("SELECT position, at_unix_s FROM cursors WHERE name = ?", (name,)).fetchone()
        return START if found is None else Cursor(*found)

    def move(self, name: str, cursor: Cursor) -> None:
        """Keep where a table was left."""
        row = (name, cursor.position, cursor.at_unix_s)
        self._connection.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?, ?)", row)

    def versions(self, name: str, keys: Iterable[str] | None = None) -> dict[str, Version]:
        """Return the rows of a table as they were last read, by their keys; only those of `keys` where given."""
        columns = "key, version, digest, restless, read_unix_s, sent"
        query = f"SELECT {columns} FROM versions WHERE name = ?"  # noqa: S608 - our own names
        if keys is None:
            rows: Iterable[Any] = self._connection.execute(query, (name,))
        else:
            one_row = f"{query} AND key = ?"
            rows = chain.from_iterable(self._connection.execute(one_row, (name, key)) for key in keys)
        return {
            key: Version(key=key, version=version, digest=digest, restless=restless, read_unix_s=at, sent=bool(sent))
            for key, version, digest, restless, at, sent in rows
        }

    def has_unsent(self, name: str) -> bool:
        """Whether the database may lack a row of a table that was given a version."""
        query = "SELECT EXISTS (SELECT 1 FROM versions WHERE name = ? AND NOT sent)"
        return bool(self._connection.execute(query, (name,)).fetchone()[0])

    def note_pass(self, now_unix_s: float) -> None:
        """Note that the record was copied completely."""
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (PASSED, f"{now_unix_s:.0f}"))

    def keep(self, name: str, rows: Sequence[Digest], read_unix_s: float) -> list[Version]:
        """Give rows their next versions and keep them, which is to be done before they are sent."""
        with _transaction(self._connection):
            next_version = self._read_next_version()
            versions = [
                Version(
                    key=row.key,
                    version=next_version + index,
                    digest=row.digest,
                    restless=row.restless,
                    read_unix_s=read_unix_s,
                    sent=False,
                )
                for index, row in enumerate(rows)
            ]
            self._connection.executemany(
                "INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?, ?, ?, 0)",
                [(name, new.key, new.version, new.digest, new.restless, read_unix_s) for new in versions],
            )
            after = (str(next_version + len(rows)), NEXT_VERSION)
            self._connection.execute("UPDATE facts SET value = ? WHERE name = ?", after)
        return versions

    def mark_sent(self, name: str, versions: Sequence[Version]) -> None:
        """Note that the database has these versions."""
        rows = [(name, item.key, item.version) for item in versions]
        with _transaction(self._connection):
            self._connection.executemany(
                "UPDATE versions SET sent = 1 WHERE name = ? AND key = ? AND version = ?", rows
            )

    def drop(self, name: str, keys: Iterable[str]) -> None:
        """Forget rows that the node's record no longer holds."""
        with _transaction(self._connection):
            rows = [(name, key) for key in keys]
            self._connection.executemany("DELETE FROM versions WHERE name = ? AND key = ?", rows)

    def _read_next_version(self) -> int:
        found = self._connection.execute("SELECT value FROM facts WHERE name = ?", (NEXT_VERSION,)).fetchone()
        return int(found[0])


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the block; after an error nothing of it remains."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
