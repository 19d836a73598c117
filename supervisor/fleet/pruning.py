"""Deletes from the fleet's database what is older than is to be kept, in small transactions; never an incident.

Versions of a row that later ones have replaced go first, the newest version of each row stays. What a node sends again
after it was deleted (`fleet ship --again`) is deleted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import text

from supervisor.fleet import schema
from supervisor.fleet.database import check_revision, explained

if TYPE_CHECKING:
    from sqlalchemy import Engine

ROWS_AT_ONCE = 10_000
DAY_S = 86_400
LEAST_DAYS = 2
"""Shippers read the last day of metrics again each hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How long what is kept, in days."""

    metrics: int = 400
    """Minutes of steps, GPUs and processes, and when a node was copied."""
    reports: int = 730
    """Flags, decisions and events."""
    replaced: int = 30
    """Versions of rows that later ones have replaced."""


def prune(engine: Engine, kept: Kept, now_unix_s: float) -> dict[str, int]:
    """Return how many rows of each table were deleted; its role must own the tables. Raises FleetError."""
    if min(kept.metrics, kept.reports, kept.replaced) < LEAST_DAYS:
        raise ValueError(f"at least {LEAST_DAYS} days are kept: the nodes send the last day again")
    deleted: dict[str, int] = {}
    with explained(), engine.connect() as connection:
        check_revision(connection)
        connection.commit()
        for table, condition, days in _list_conditions(kept):
            query = (
                f"DELETE FROM {schema.SCHEMA}.{table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM "  # noqa: S608 - our own names
                f"{schema.SCHEMA}.{table} AS old WHERE {condition} LIMIT {ROWS_AT_ONCE}))"
            )
            values: Mapping[str, float] = {"before": now_unix_s - days * DAY_S}
            count = ROWS_AT_ONCE
            while count == ROWS_AT_ONCE:
                count = connection.execute(text(query), values).rowcount
                connection.commit()
                deleted[table] = deleted.get(table, 0) + count
    return deleted


def _list_conditions(kept: Kept) -> Iterator[tuple[str, str, int]]:
    """Yield (table, condition on its row `old`, days that are kept)."""
    for shipped in schema.VERSIONED:
        same = " AND ".join(f"newer.{name} = old.{name}" for name in ("node", *shipped.key))
        newer = f"SELECT 1 FROM {schema.SCHEMA}.{shipped.name} AS newer WHERE {same} AND newer.version > old.version"  # noqa: S608 - our own names
        yield shipped.name, f"old.read_unix_s < :before AND EXISTS ({newer})", kept.replaced
    for shipped in schema.NUMBERED:
        yield shipped.name, "old.at_unix_s < :before", kept.reports
    for shipped in schema.MINUTES:
        yield shipped.name, "old.bucket_unix_s < :before", kept.metrics
    table = f"{schema.SCHEMA}.{schema.beats.name}"
    later = f"SELECT 1 FROM {table} AS later WHERE later.node = old.node AND later.at_unix_s > old.at_unix_s"  # noqa: S608 - our own names
    yield schema.beats.name, f"old.at_unix_s < :before AND EXISTS ({later})", kept.metrics
