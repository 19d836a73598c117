"""Deletes old rows, a bounded part in each call: samples first, step metrics next, jobs never.

Checkpoints are deleted by the daemon, which looks whether their files still exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from supervisor.store import sql, tiers
from supervisor.store.database import Database
from supervisor.store.outbox import WAITING
from supervisor.store.sql import Statement

CHUNK_ROWS = 5000
EVENTS_OF_A_JOB = 20_000
"""A training of a month with its validations, saves and restarts records some thousands."""
DAY_S = 86400.0
FREED_PAGES = 2000
SAMPLES = ("gpu_samples", "process_samples", "host_samples")
OF_JOB = (
    "attempts",
    "incidents",
    "flags",
    "decisions",
    "checkpoints",
    "remedies",
    "step_metrics",
    "step_tiers",
    "process_samples",
    "process_tiers",
    "events",
)
"""The tables whose rows belong to a job, but for the alerts; a test compares them with the tables."""
_DELETE = "DELETE FROM {table} WHERE {where}"
_LARGEST = "SELECT job, count(*) AS rows FROM {table} WHERE job IS NOT NULL GROUP BY job ORDER BY rows DESC LIMIT 1"
_NTH = "SELECT at_unix_s FROM {table} ORDER BY at_unix_s LIMIT 1 OFFSET ?"
_ENDS = "SELECT min(at_unix_s) AS first, max(at_unix_s) AS last FROM {table}"


class Retention(Protocol):
    """How long things are kept, and how large the file may grow."""

    @property
    def step_metrics_days(self) -> float:
        """Days that the ten-second buckets of steps are kept."""
        ...

    @property
    def samples_days(self) -> float:
        """Days that samples of GPUs, host and processes are kept."""
        ...

    @property
    def five_minutes_days(self) -> float:
        """Days that metrics aggregated over five minutes are kept."""
        ...

    @property
    def hours_days(self) -> float:
        """Days that metrics aggregated over an hour are kept."""
        ...

    @property
    def incidents_days(self) -> float:
        """Days that incidents are kept, with attempts, decisions, flags, events and alerts."""
        ...

    @property
    def database_limit_mb(self) -> float:
        """Size from which samples and then step metrics are deleted before their time."""
        ...


def prune(database: Database, unix_s: float, retention: Retention) -> int:
    """Delete expired rows, at most a chunk of each table; return the rows deleted.

    Raises UnusableError. Free pages go back to the file system: without that a file in which everything is deleted in
    time still grows for ever.
    """
    samples_before = unix_s - retention.samples_days * DAY_S
    rest_before = unix_s - retention.incidents_days * DAY_S
    statements = [
        *(_delete_older(table, "at_unix_s", samples_before) for table in SAMPLES),
        _delete_older("step_metrics", "bucket_unix_s", unix_s - retention.step_metrics_days * DAY_S),
        *_delete_tiers(unix_s, retention),
        *(_delete_older(table, "at_unix_s", rest_before) for table in ("events", "decisions", "flags")),
        _delete_older("incidents", "opened_unix_s", rest_before, Statement("closed")),
        _delete_older("attempts", "ended_unix_s", rest_before),
        _delete_older("remedies", "settled_unix_s", rest_before),
        _delete_older("alerts", "queued_unix_s", rest_before, Statement("state != ?", (WAITING,))),
    ]
    deleted = database.change(*statements)
    if used_bytes(database) > retention.database_limit_mb * 1e6:
        deleted += _delete_least_needed(database)
    database.give_back(FREED_PAGES)
    return deleted


def _delete_tiers(unix_s: float, retention: Retention) -> Iterator[Statement]:
    """Yield the statements that delete expired rows of tiers: those finer than five minutes with the raw rows."""
    for kept in tiers.ALL:
        raw_days = retention.step_metrics_days if kept is tiers.STEPS else retention.samples_days
        days_of = {tiers.HOUR_S: retention.hours_days, tiers.FIVE_MINUTES_S: retention.five_minutes_days}
        for width in kept.widths:
            before = unix_s - days_of.get(width, raw_days) * DAY_S
            yield _delete_older(kept.table, "bucket_unix_s", before, Statement("width_s = ?", (width,)))


def rows_of_job(job: str, note_prefix: str, note: str) -> list[Statement]:
    """Return the statements that delete every row of a job and its notes: those with the prefix, and one more.

    Alerts that wait are still delivered.
    """
    deletions = [
        *((table, "job = ?", (job,)) for table in OF_JOB),
        ("alerts", "job = ? AND state != ?", (job, WAITING)),
        ("notes", "substr(key, 1, length(?)) = ? OR key = ?", (note_prefix, note_prefix, note)),
        ("jobs", "name = ?", (job,)),
    ]
    return [Statement(_DELETE.format(table=table, where=where), values) for table, where, values in deletions]


def _delete_least_needed(database: Database) -> int:
    """Delete a chunk of the least needed rows; return the number of rows deleted.

    First the events of a job with more than `EVENTS_OF_A_JOB`, then samples, then the oldest steps of the job with most
    steps, then the events of the job with most events: the rows of one job do not displace another's.
    """
    noisiest = _find_largest_job(database, "events")
    if noisiest is not None and noisiest[1] > EVENTS_OF_A_JOB:
        return database.change(_oldest_chunk("events", "at_unix_s", noisiest[0]))
    if deleted := shed_samples(database):
        return deleted
    for table, column in (("step_metrics", "bucket_unix_s"), ("events", "at_unix_s")):
        if largest := _find_largest_job(database, table):
            return database.change(_oldest_chunk(table, column, largest[0]))
    return 0


def _find_largest_job(database: Database, table: str) -> tuple[str, int] | None:
    """Return the job with most rows in a table, and their number; None if no job has any."""
    found = database.read(Statement(_LARGEST.format(table=table)))
    return (found[0]["job"], int(found[0]["rows"])) if found else None


def shed_samples(database: Database) -> int:
    """Delete at most a chunk of the oldest samples of each kind; return the number deleted. Raises UnusableError."""
    cut = _shedding_time(database)
    return 0 if cut is None else database.change(*(_delete_older(table, "at_unix_s", cut) for table in SAMPLES))


def used_bytes(database: Database) -> int:
    """Return the size in bytes of the file's used pages."""
    pages, free, size = (int(database.pragma(name)[0][0]) for name in ("page_count", "freelist_count", "page_size"))
    return (pages - free) * size


def _shedding_time(database: Database) -> float | None:
    """Return a time before which no kind of sample has more than a chunk; of few samples the middle of their times."""
    nth = [
        row["at_unix_s"]
        for table in SAMPLES
        for row in database.read(Statement(_NTH.format(table=table), (CHUNK_ROWS,)))
    ]
    if nth:
        return float(min(nth))
    ends = [
        (row["first"], row["last"])
        for table in SAMPLES
        for row in database.read(Statement(_ENDS.format(table=table)))
        if row["first"] is not None
    ]
    if not ends:
        return None
    first, last = min(end for end, _ in ends), max(end for _, end in ends)
    # Half a second on, so that a single moment's samples have a middle too.
    return float((first + last) / 2 + 0.5)


def _delete_older(table: str, column: str, before_unix_s: float, only: Statement | None = None) -> Statement:
    where, values = f"{column} < ?", [before_unix_s]
    if only is not None:
        where, values = f"{where} AND {only.text}", [*values, *only.values]
    return sql.delete_some(table, where, values, CHUNK_ROWS)


def _oldest_chunk(table: str, column: str, job: str) -> Statement:
    return sql.delete_some(table, "job = ?", [job], CHUNK_ROWS, order_by=column)


def delete_rows(table: str, keys: Sequence[tuple[object, ...]]) -> list[Statement]:
    """Return the statements that delete the rows of these primary keys."""
    where = " AND ".join(f"{name} = ?" for name in sql.KEYS[table])
    return [Statement(_DELETE.format(table=table, where=where), key) for key in keys]
