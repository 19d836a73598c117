"""Copies what is new in a node's record to the fleet's database: at least once, and idempotent, so exactly once.

The node's own database is only read, and stays the truth; nothing in the daemon waits for this. An outage of the
fleet's database loses nothing: each pass goes on where the last one was answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, StatementError

from supervisor.fleet import schema
from supervisor.fleet.database import ANSWER_LIMIT_S, answered_within, check_revision, explained, is_away
from supervisor.fleet.schema import Shipped
from supervisor.fleet.sent import START, Cursor, Digest, Sent, Version
from supervisor.json_bytes import encode_json
from supervisor.store.archive import FileRows
from supervisor.store.sql import Statement
from supervisor.store.tiers import MINUTE_S

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table

ROWS_AT_ONCE = 2000
SETTLE_S = 600.0
"""A minute's metrics are copied after this time: until then late steps may still be added to them."""
LOOK_BACK_S = 86_400.0
LOOK_BACK_EVERY_S = 3600.0
"""Metrics of a daemon's outage are recorded when it runs again: the last day is read again each hour."""
RESTFUL_S = 3600.0
"""A row that has been complete for so long is read again with the look back only: few of thousands still change."""
NAMED_ROWS = 500
"""Where more rows may change, all of the table are read."""
COMPLETE = "is_complete"
ABOUT_A_ROW = ("22", "23", "54", "42804", "42846")
REFRESH_S = 300.0
"""A row of which only restless columns changed is copied again after this time."""

_USED = "path IN (SELECT resume_from FROM attempts WHERE attempts.job = checkpoints.job)"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass did."""

    rows: int = 0
    """Rows that were sent; those that the database had already are among them."""
    refused: tuple[str, ...] = ()
    """Rows that the database will never take, with its reason."""


class Shipper:
    """Copies the record of one node. `ship_new` may be called again and again; used by one thread."""

    def __init__(  # noqa: PLR0913 - where from, where to, and by which limit
        self,
        record: Path,
        engine: Engine,
        sent: Sent,
        node: str,
        now: Callable[[], float],
        *,
        answer_limit_s: float = ANSWER_LIMIT_S,
    ) -> None:
        """`record`: the node's database file; `now` returns Unix seconds; `answer_limit_s` is that of the server."""
        self._answer_limit_s = answer_limit_s
        self._record = FileRows(record)
        self._engine = engine
        self._sent = sent
        self._node = node
        self._now = now
        self._looked_back_at: float | None = None
        self._resting: dict[str, dict[str, float]] = {}
        """By table and key, when a complete row was first read as it is, in Unix seconds."""
        self._rows = 0
        self._refused: list[str] = []

    def ship_new(self) -> Pass:
        """Copy all that is new; raise FleetError, ArchiveError (the node's record) or sqlite3.Error (what was sent)."""
        self._rows, self._refused = 0, []
        now = self._now()
        self._record.check()
        with explained(), self._engine.connect() as fleet:
            with self._answered(fleet):
                check_revision(fleet)
                fleet.commit()
            look_back = self._is_look_back_due(now)
            for shipped in schema.VERSIONED:
                self._ship_versions(fleet, shipped, now, look_back=look_back)
            for shipped in schema.NUMBERED:
                self._ship_numbered(fleet, shipped)
            for shipped in schema.MINUTES:
                self._ship_minutes(fleet, shipped, now, look_back=look_back)
            self._looked_back_at = now if look_back else self._looked_back_at
            self._insert(fleet, schema.beats, [{"node": self._node, "at_unix_s": int(now) // MINUTE_S * MINUTE_S}])
        self._sent.note_pass(now)
        return Pass(rows=self._rows, refused=tuple(self._refused))

    # --- rows that are written once -------------------------------------------------------------------------------

    def _ship_numbered(self, fleet: Connection, shipped: Shipped) -> None:
        cursor = self._find_start(shipped)
        query = f"SELECT * FROM {shipped.name} WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608 - our own names
        while rows := self._record.read(Statement(query, (cursor.position, ROWS_AT_ONCE))):
            self._insert(fleet, shipped.fleet, [self._name_node(row) for row in rows])
            cursor = Cursor(rows[-1]["id"], rows[-1]["at_unix_s"])
            self._sent.move(shipped.name, cursor)

    def _find_start(self, shipped: Shipped) -> Cursor:
        """Return where to go on: at the beginning where the row sent last is gone, for its id may be used again."""
        cursor = self._sent.cursor(shipped.name)
        query = f"SELECT at_unix_s FROM {shipped.name} WHERE id = ?"  # noqa: S608 - our own names
        last = self._record.read(Statement(query, (cursor.position,)))
        return cursor if last and last[0]["at_unix_s"] == cursor.at_unix_s else START

    def _ship_minutes(self, fleet: Connection, shipped: Shipped, now: float, *, look_back: bool) -> None:
        cursor = self._sent.cursor(shipped.name).position
        since = min(cursor, int(now - LOOK_BACK_S)) if look_back else cursor
        settled = int(now - SETTLE_S) - MINUTE_S
        between = "width_s = ? AND bucket_unix_s <= ? AND bucket_unix_s > ?"
        query = f"SELECT * FROM {shipped.name} WHERE {between} ORDER BY {', '.join(shipped.key)} LIMIT ?"  # noqa: S608 - our own names
        while rows := self._record.read(Statement(query, (MINUTE_S, settled, since, ROWS_AT_ONCE))):
            last = rows[-1]["bucket_unix_s"]
            if len(rows) == ROWS_AT_ONCE and rows[0]["bucket_unix_s"] < last:
                rows = [row for row in rows if row["bucket_unix_s"] < last]  # the last minute may be incomplete
            self._insert(fleet, shipped.fleet, [self._name_node(row) for row in rows])
            since = rows[-1]["bucket_unix_s"]
            if since > cursor:
                self._sent.move(shipped.name, Cursor(since, float(since)))

    def _is_look_back_due(self, now: float) -> bool:
        return self._looked_back_at is None or not 0 <= now - self._looked_back_at < LOOK_BACK_EVERY_S

    # --- rows that change -----------------------------------------------------------------------------------------

    def _ship_versions(self, fleet: Connection, shipped: Shipped, now: float, *, look_back: bool) -> None:
        # What an outage or the end of this program has left unsent may be complete by now.
        everything = look_back or not shipped.restful or self._sent.has_unsent(shipped.name)
        read = self._read_all(shipped) if everything else self._read_changing(shipped, now)
        rows = {_key_of(row, shipped): row for row in read}
        complete = {key for key, row in rows.items() if row.pop(COMPLETE)}
        known = self._sent.versions(shipped.name, None if everything else rows)
        self._sent.drop(shipped.name, known.keys() - rows.keys())
        digests = [_digest(key, row, shipped) for key, row in rows.items()]
        for chunk in _chunks([item for item in digests if _is_new(known.get(item.key), item, now)]):
            self._sent.keep(shipped.name, chunk, now)
        kept = self._sent.versions(shipped.name, None if everything else rows)
        for versions in _chunks([item for item in kept.values() if not item.sent]):
            self._insert(fleet, shipped.fleet, [self._name_version(rows[item.key], item) for item in versions])
            self._sent.mark_sent(shipped.name, versions)
        resting = {} if everything else self._resting[shipped.name]
        self._resting[shipped.name] = {**resting, **{key: kept[key].read_unix_s for key in complete}}

    def _read_all(self, shipped: Shipped) -> list[dict[str, Any]]:
        return self._record.read(Statement(_query_changing(shipped, "*")))

    def _read_changing(self, shipped: Shipped, now: float) -> list[dict[str, Any]]:
        """Return the rows without those that were complete long ago; of those the keys alone are read."""
        resting = self._resting[shipped.name]
        keys = self._record.read(Statement(_query_changing(shipped, ", ".join(shipped.key))))
        changing = [
            row for row in keys if not row[COMPLETE] or resting.get(_key_of(row, shipped), now) > now - RESTFUL_S
        ]
        if len(changing) > NAMED_ROWS:
            return self._read_all(shipped)
        if not changing:
            return []
        named = f"({', '.join(shipped.key)}) IN (VALUES {', '.join([_marks(shipped)] * len(changing))})"
        query = f"SELECT *, {shipped.restful} AS {COMPLETE} FROM {shipped.name} WHERE {named}"  # noqa: S608 - our own names
        return self._record.read(Statement(query, tuple(row[name] for row in changing for name in shipped.key)))

    def _answered(self, fleet: Connection) -> AbstractContextManager[None]:
        return answered_within(fleet, self._answer_limit_s)

    # --- sending --------------------------------------------------------------------------------------------------

    def _name_node(self, row: Row) -> dict[str, Any]:
        return {"node": self._node, **{name: _as_storable(value) for name, value in row.items()}}

    def _name_version(self, row: Row, version: Version) -> dict[str, Any]:
        return {**self._name_node(row), "version": version.version, "read_unix_s": version.read_unix_s}

    def _insert(self, fleet: Connection, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows that are not there yet; where one is refused, insert the others one by one."""
        statement = insert(table).on_conflict_do_nothing()
        try:
            with self._answered(fleet):
                fleet.execute(statement, list(rows))
        except StatementError as error:
            if not _is_about_a_row(error):
                raise
            with self._answered(fleet):
                fleet.rollback()
            self._insert_singly(fleet, table, rows)
        with self._answered(fleet):
            fleet.commit()
        self._rows += len(rows)

    def _insert_singly(self, fleet: Connection, table: Table, rows: Sequence[Row]) -> None:
        for row in rows:
            try:
                with self._answered(fleet), fleet.begin_nested():
                    fleet.execute(insert(table).on_conflict_do_nothing(), row)
            except StatementError as error:
                if not _is_about_a_row(error):
                    raise
                key = {column.name: row[column.name] for column in table.primary_key.columns}
                self._refused.append(f"{table.name} {key}: {str(error.orig).strip()}"[:500])


def _is_about_a_row(error: StatementError) -> bool:
    """Whether an error is about a row, and will be the same the next time.

    SQLSTATE 22 and 23 are of values, 54 of their size, 42804 and 42846 of their types: SQLite takes any in any column.
    What is no error of the driver is of a value that was not even sent.
    """
    if not isinstance(error, DBAPIError):
        return True
    return not is_away(error) and str(getattr(error.orig, "sqlstate", "")).startswith(ABOUT_A_ROW)


def _query_changing(shipped: Shipped, columns: str) -> str:
    """Return the query of a table's rows, and which are complete; of checkpoints those that were resumed from."""
    where = f" WHERE {_USED}" if shipped is schema.CHECKPOINTS else ""
    return f"SELECT {columns}, {shipped.restful or 0} AS {COMPLETE} FROM {shipped.name}{where}"  # noqa: S608 - our own names


def _marks(shipped: Shipped) -> str:
    return f"({', '.join('?' * len(shipped.key))})"


def _key_of(row: Row, shipped: Shipped) -> str:
    return encode_json([row[name] for name in shipped.key]).decode()


def _digest(key: str, row: Row, shipped: Shipped) -> Digest:
    settled = [value for name, value in row.items() if name not in shipped.restless]
    restless = [row[name] for name in shipped.restless]
    return Digest(key=key, digest=_hash(settled), restless=_hash(restless))


def _hash(values: list[Any]) -> bytes:
    return hashlib.blake2b(encode_json(values), digest_size=16).digest()


def _is_new(known: Version | None, found: Digest, now: float) -> bool:
    """Whether a row is sent as a new version."""
    if known is None or known.digest != found.digest:
        return True
    return known.restless != found.restless and not 0 <= now - known.read_unix_s < REFRESH_S


def _as_storable(value: Any) -> Any:
    """Return a value as PostgreSQL takes it: its texts hold no NUL, and are valid UTF-8."""
    if not isinstance(value, str):
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))
