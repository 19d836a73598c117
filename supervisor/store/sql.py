"""Statements as SQLite takes them, and the primary keys of the tables.

SQLAlchemy and Alembic define the tables (`tables.py`, `migrations/`) in programs of their own: in the daemon they would
be a fifth of its memory. Names in a statement are always the code's own; values are always parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

KEYS: Mapping[str, tuple[str, ...]] = {
    "jobs": ("name",),
    "attempts": ("job", "number"),
    "incidents": ("id",),
    "flags": ("id",),
    "decisions": ("id",),
    "checkpoints": ("job", "path", "size_bytes", "modified_ns", "inode"),
    "remedies": ("job", "attempt"),
    "alerts": ("id",),
    "step_metrics": ("job", "attempt", "rank", "bucket_unix_s"),
    "step_tiers": ("width_s", "bucket_unix_s", "job", "attempt", "rank"),
    "gpu_tiers": ("width_s", "bucket_unix_s", "gpu"),
    "process_tiers": ("width_s", "bucket_unix_s", "job"),
    "gpus": ("gpu",),
    "gpu_samples": ("at_unix_s", "gpu", "source"),
    "host_samples": ("at_unix_s",),
    "process_samples": ("at_unix_s", "job"),
    "events": ("id",),
    "notes": ("key",),
}
"""The primary key of every table; a test compares them with the tables."""

_INSERT = "INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT"
_DELETE = "DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {where}{order} LIMIT ?)"


class Statement(NamedTuple):
    """A statement or query with the values of its parameters."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] = ()


def insert_or_ignore(table: str, columns: Sequence[str]) -> str:
    """Return the statement that inserts a row of these columns unless there is one of its key."""
    return f"{_insert(table, columns)} DO NOTHING"


def upsert(table: str, columns: Sequence[str], changes: Mapping[str, str]) -> str:
    """Return the statement that inserts a row of these columns or makes the changes in the one of its key.

    A change is an expression by column, in which `excluded` is the new row and a bare column the one in the table.
    """
    changed = ", ".join(f"{name} = {value}" for name, value in changes.items())
    return f"{_insert(table, columns)} ({', '.join(KEYS[table])}) DO UPDATE SET {changed}"


def delete_some(table: str, where: str, values: Sequence[Any], limit: int, order_by: str | None = None) -> Statement:
    """Return the statement that deletes at most `limit` rows for which `where` holds, the first of an order."""
    order = "" if order_by is None else f" ORDER BY {order_by}"
    text = _DELETE.format(table=table, key=", ".join(KEYS[table]), where=where, order=order)
    return Statement(text, (*values, limit))


def placeholders(values: Collection[object]) -> str:
    """Return a question mark for each value."""
    return ", ".join("?" * len(values))


def _insert(table: str, columns: Sequence[str]) -> str:
    values = ", ".join(f":{name}" for name in columns)
    return _INSERT.format(table=table, columns=", ".join(columns), values=values)
