"""Read-only access to the record, from any thread or process, whether a daemon runs or not.

The rows come from a database file, or from whatever answers the same queries (`Rows`).
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.decisions import Note
from supervisor.core.incident import Incident
from supervisor.core.job import Job
from supervisor.core.measured import measures_of
from supervisor.core.readings import GpuReading, HostReading
from supervisor.core.remedies.context import Experience
from supervisor.core.reports.strides import Stride, Strides
from supervisor.store import files, schema, steps
from supervisor.store.database import read_rows
from supervisor.store.errors import ArchiveError, StoreError
from supervisor.store.experience import experience_of
from supervisor.store.jobs import UnreadableRowError, decode_incident, decode_job, decode_note
from supervisor.store.records import (
    AlertCount,
    AlertRecord,
    AttemptRecord,
    DecisionRecord,
    EventRecord,
    FlagRecord,
    GpuRecord,
    GpuSample,
    HostSample,
    IncidentStory,
    KnownCheckpoint,
    ProcessSample,
    RemedyRecord,
    StepBucket,
)
from supervisor.store.rows import checkpoint_of
from supervisor.store.sql import Statement
from supervisor.store.steps import Row

_Record = TypeVar("_Record")
Where: TypeAlias = tuple[str, Any]
"""A condition with one question mark, and the value that stands for it."""

_SELECT = "SELECT * FROM {table} WHERE {where}{order}"
_OLD_CHECKPOINTS = """
SELECT * FROM (
    SELECT *, max(modified_ns) OVER (PARTITION BY path) AS newest_ns FROM checkpoints WHERE job = ?
)
WHERE first_seen_unix_s < ? AND path NOT IN (
    SELECT resume_from FROM attempts WHERE job = ? AND resume_from IS NOT NULL
)
ORDER BY first_seen_unix_s, path, modified_ns LIMIT ? OFFSET ?"""
_RESUMED_SAVES = """
SELECT path, step, modified_ns FROM checkpoints WHERE job = ? AND path IN (
    SELECT resume_from FROM attempts WHERE job = ? AND resume_from IS NOT NULL
)"""
_PROVEN_SAVES = "SELECT job, max(modified_ns) AS newest_ns FROM checkpoints WHERE verdict = 'proven' GROUP BY job"
_DECISIONS_OF_INCIDENT = """
SELECT * FROM decisions
WHERE job = ? AND (attempt = ? OR (attempt = ? AND kind = 'launch')) ORDER BY id"""
# SQLite takes the other columns from the row with the maximum (its documentation, "Bare columns").
_ALERT_COUNTS = """
SELECT sink, state, count(*) AS count, count(tried_unix_s) AS tried, max(coalesce(tried_unix_s, 0.0)),
       tried_unix_s, error
FROM alerts GROUP BY sink, state"""


_STRIDES = """
SELECT attempt, bucket_unix_s, first_unix_s, last_unix_s, step_first, step_last,
       coalesce(data_wait_mean_s, 0.0) * steps AS data_wait_s
FROM step_metrics WHERE job = ? AND rank = 0 AND (attempt, bucket_unix_s) > (?, ?)
ORDER BY attempt, bucket_unix_s LIMIT ?"""
STRIDES_AT_ONCE = 5000
"""Rows are read as dicts, of which a month of training would take 400 MB."""


class Rows(Protocol):
    """What answers queries of the tables; its methods raise ArchiveError."""

    def check(self) -> None:
        """Raise ArchiveError, with the remedy, unless queries can be answered."""
        ...

    def read(self, query: Statement) -> list[Row]:
        """Return the rows of a query."""
        ...


class FileRows:
    """The rows of a database file; every query uses its own connection."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        """Raise ArchiveError, with the remedy, unless the file exists and has the schema that this version reads."""
        if not self._path.exists():
            raise ArchiveError(f"{self._path} does not exist: the daemon has recorded nothing yet")
        try:
            with closing(files.open_reader(self._path)) as connection:
                reason = schema.unreadable(self._path, connection)
        except sqlite3.Error as error:
            raise ArchiveError(f"{self._path} cannot be read: {error}") from error
        if reason is not None:
            raise ArchiveError(reason)

    def read(self, query: Statement) -> list[Row]:
        """Return the rows of a query; where it fails, say what is wrong with the file, if that is known."""
        try:
            try:
                return self._read(query, str)
            except sqlite3.OperationalError as error:
                if "decode" not in str(error):
                    raise
            return self._read(query, _decode_with_gaps)
        except sqlite3.Error as error:
            self.check()
            raise ArchiveError(f"{self._path} cannot be read: {error}") from error

    def _read(self, query: Statement, text: Callable[[bytes], str] | type[str]) -> list[Row]:
        with closing(files.open_reader(self._path)) as connection:
            connection.text_factory = text
            return read_rows(connection, query)


def _decode_with_gaps(text: bytes) -> str:
    """Return a text of the file in which a disk has changed a bit, so that it is no UTF-8 any more."""
    return text.decode("utf-8", "replace")


class Archive:
    """The record of one machine, opened for reading."""

    def __init__(self, path: Path, rows: Rows | None = None) -> None:
        """`path`: the database file; `rows`: what answers instead of it."""
        self.path = path
        self._rows = FileRows(path) if rows is None else rows
        self._read = self._rows.read

    @classmethod
    def at(cls, url: str) -> Archive:
        """Return the archive of a `sqlite:///` URL. Raises ArchiveError for any other URL."""
        try:
            return cls(files.database_path(url))
        except StoreError as error:
            raise ArchiveError(str(error)) from error

    def check(self) -> None:
        """Raise ArchiveError, with the remedy, unless the record can be read."""
        self._rows.check()

    # --- jobs, attempts, incidents --------------------------------------------------------------------------------

    def jobs(self) -> tuple[Job, ...]:
        """Return every job as last saved, by name; only the wall-clock part of its moments is valid here."""
        found = self._read(_select("jobs", order_by="name"))
        return tuple(job for row in found if (job := _readable_job(row)) is not None)

    def attempts(self, job: str, limit: int = 1000) -> tuple[AttemptRecord, ...]:
        """Return the attempts of a job, the newest first."""
        query = _select("attempts", [("job = ?", job)], order_by="number DESC", limit=limit)
        return _build_records(AttemptRecord, self._read(query))

    def incidents(self, job: str | None = None, limit: int = 100) -> tuple[Incident, ...]:
        """Return incidents, the newest first."""
        found = self._read(_select("incidents", _of_job(job), order_by="opened_unix_s DESC", limit=limit))
        return tuple(incident for row in found if (incident := _readable_incident(row)) is not None)

    def incident(self, incident_id: str) -> IncidentStory | None:
        """Return an incident with its flags and decisions in order of time; None if there is no such incident."""
        found = self._read(_select("incidents", [("id = ?", incident_id)]))
        incident = _readable_incident(found[0]) if found else None
        if incident is None:
            return None
        of_attempt = [("job = ?", incident.job), ("attempt = ?", incident.attempt)]
        values = (incident.job, incident.attempt, incident.attempt + 1)
        return IncidentStory(
            incident=incident,
            flags=_build_records(FlagRecord, self._read(_select("flags", of_attempt, order_by="id"))),
            decisions=_build_records(DecisionRecord, self._read(Statement(_DECISIONS_OF_INCIDENT, values))),
        )

    def decisions(self, job: str, limit: int = 100) -> tuple[DecisionRecord, ...]:
        """Return the decisions about a job, the newest first."""
        query = _select("decisions", [("job = ?", job)], order_by="id DESC", limit=limit)
        return _build_records(DecisionRecord, self._read(query))

    def notes(self, job: str | None = None, limit: int = 100) -> tuple[Note, ...]:
        """Return the flags that rules in shadow mode would have acted on, the newest first."""
        shadow = [("kind = ?", "note"), *_of_job(job)]
        found = self._read(_select("decisions", shadow, order_by="id DESC", limit=limit))
        return tuple(note for row in found if (note := _readable_note(row)) is not None)

    def flags(self, job: str, limit: int = 100) -> tuple[FlagRecord, ...]:
        """Return the flags that rose about a job, the newest first."""
        query = _select("flags", [("job = ?", job)], order_by="id DESC", limit=limit)
        return _build_records(FlagRecord, self._read(query))

    def checkpoints(self, job: str) -> tuple[KnownCheckpoint, ...]:
        """Return every checkpoint ever seen of a job, the newest first."""
        found = self._read(_select("checkpoints", [("job = ?", job)], order_by="first_seen_unix_s DESC"))
        return tuple(
            KnownCheckpoint(
                checkpoint=checkpoint_of(row),
                attempt=row["attempt"],
                first_seen_unix_s=row["first_seen_unix_s"],
                judged_unix_s=row["judged_unix_s"],
            )
            for row in found
        )

    def old_checkpoints(
        self, job: str, before_unix_s: float, *, offset: int, limit: int
    ) -> tuple[tuple[Checkpoint, bool], ...]:
        """Return a job's checkpoints first seen before a time (Unix seconds) from which no attempt was resumed.

        The first seen comes first; with each, whether a newer row of its path exists. Raises ArchiveError.
        """
        found = self._read(Statement(_OLD_CHECKPOINTS, (job, before_unix_s, job, limit, offset)))
        return tuple((checkpoint_of(row), row["newest_ns"] > row["modified_ns"]) for row in found)

    def resumed_saves(self, job: str) -> tuple[tuple[str, int | None, float], ...]:
        """Return path, step and save time (Unix seconds) of the checkpoints that attempts of a job were resumed from.

        A path that was overwritten has several entries.
        """
        found = self._read(Statement(_RESUMED_SAVES, (job, job)))
        return tuple((row["path"], row["step"], row["modified_ns"] / 1e9) for row in found)

    def proven_saves(self) -> dict[str, float]:
        """Return when the newest proven checkpoint of each job that has one was saved, Unix seconds."""
        found = self._read(Statement(_PROVEN_SAVES))
        return {row["job"]: row["newest_ns"] / 1e9 for row in found}

    # --- steps and samples ----------------------------------------------------------------------------------------

    def step_metrics(
        self,
        job: str,
        attempt: int | None = None,
        since_unix_s: float | None = None,
        until_unix_s: float | None = None,
        bucket_s: int = steps.BUCKET_S,
    ) -> tuple[StepBucket, ...]:
        """Return the steps of a job (rank 0) in order of time, `bucket_s` (a multiple of ten) to a bucket."""
        where = [("job = ?", job), ("rank = ?", 0), *([] if attempt is None else [("attempt = ?", attempt)])]
        where += _in_time("bucket_unix_s", since_unix_s, until_unix_s)
        found = self._read(_select("step_metrics", where, order_by="attempt, bucket_unix_s"))
        return _build_records(StepBucket, _merge_buckets(found, max(bucket_s, steps.BUCKET_S)))

    def strides(self, job: str) -> dict[int, Strides]:
        """Return the steps of each attempt of a job (rank 0) as strides, in order of time."""
        found: dict[int, Strides] = defaultdict(Strides)
        after = (-1, 0)
        while rows := self._read(Statement(_STRIDES, (job, *after, STRIDES_AT_ONCE))):
            for row in rows:
                found[row["attempt"]].append(Stride(**{name: row[name] for name in Stride.__slots__}))
            after = (rows[-1]["attempt"], rows[-1]["bucket_unix_s"])
            if len(rows) < STRIDES_AT_ONCE:
                break
        return dict(found)

    def gpus(self) -> tuple[GpuRecord, ...]:
        """Return every GPU ever seen."""
        return _build_records(GpuRecord, self._read(_select("gpus", order_by="gpu")))

    def gpu_samples(
        self,
        gpu: str | None = None,
        since_unix_s: float | None = None,
        until_unix_s: float | None = None,
        limit: int = 10_000,
    ) -> tuple[GpuSample, ...]:
        """Return readings in order of time; at most the newest `limit` of them."""
        where = [*_in_time("at_unix_s", since_unix_s, until_unix_s), *([] if gpu is None else [("gpu = ?", gpu)])]
        query = _select("gpu_samples", where, order_by="at_unix_s DESC", limit=limit)
        return tuple(_gpu_sample(row) for row in reversed(self._read(query)))

    def host_samples(
        self, since_unix_s: float | None = None, until_unix_s: float | None = None, limit: int = 10_000
    ) -> tuple[HostSample, ...]:
        """Return readings of the machine in order of time; at most the newest `limit` of them."""
        where = _in_time("at_unix_s", since_unix_s, until_unix_s)
        query = _select("host_samples", where, order_by="at_unix_s DESC", limit=limit)
        return tuple(
            HostSample(
                at_unix_s=row["at_unix_s"],
                values=_recorded_values(HostReading, row),
                disks=json.loads(row["disks"] or "null"),
            )
            for row in reversed(self._read(query))
        )

    def process_samples(
        self,
        job: str,
        since_unix_s: float | None = None,
        until_unix_s: float | None = None,
        limit: int = 10_000,
    ) -> tuple[ProcessSample, ...]:
        """Return readings of a job's process tree in order of time; at most the newest `limit` of them."""
        where = [("job = ?", job), *_in_time("at_unix_s", since_unix_s, until_unix_s)]
        query = _select("process_samples", where, order_by="at_unix_s DESC", limit=limit)
        return _build_records(ProcessSample, self._read(query))[::-1]

    # --- remedies -------------------------------------------------------------------------------------------------

    def remedies(self, job: str | None = None, limit: int = 100) -> tuple[RemedyRecord, ...]:
        """Return the applied remedies, the newest first."""
        query = _select("remedies", _of_job(job), order_by="at_unix_s DESC", limit=limit)
        return _build_records(RemedyRecord, self._read(query))

    def experience(self) -> tuple[Experience, ...]:
        """Return the results of each remedy on this machine, for all jobs together."""
        return experience_of(self._read(_select("remedies")))

    # --- events, alerts, the file itself --------------------------------------------------------------------------

    def events(
        self, job: str | None = None, after_id: int | None = None, limit: int = 100, kind: str | None = None
    ) -> tuple[EventRecord, ...]:
        """Return rare events, all or of one kind, in order of time: those after `after_id`, or else the newest."""
        where = [] if job is None else [("(job = ? OR job IS NULL)", job)]
        where += [] if kind is None else [("kind = ?", kind)]
        if after_id is not None:
            query = _select("events", [*where, ("id > ?", after_id)], order_by="id", limit=limit)
            return _build_records(EventRecord, self._read(query))
        return _build_records(EventRecord, self._read(_select("events", where, order_by="id DESC", limit=limit)))[::-1]

    def alerts(self, state: str | None = None, limit: int = 100) -> tuple[AlertRecord, ...]:
        """Return alerts, the newest first; `state` is waiting, delivered, failed or withdrawn."""
        where = [] if state is None else [("state = ?", state)]
        query = _select("alerts", where, order_by="queued_unix_s DESC", limit=limit)
        return _build_records(AlertRecord, self._read(query))

    def alert_counts(self) -> tuple[AlertCount, ...]:
        """Return the alerts of each receiver counted by state."""
        return _build_records(AlertCount, self._read(Statement(_ALERT_COUNTS)))


def _select(
    table: str, where: Sequence[Where] = (), *, order_by: str | None = None, limit: int | None = None
) -> Statement:
    """Return the query of the rows of a table for which all conditions hold."""
    condition = " AND ".join(text for text, _ in where) or "true"
    order = "" if order_by is None else f" ORDER BY {order_by}"
    query = _SELECT.format(table=table, where=condition, order=order)
    values = tuple(value for _, value in where)
    return Statement(query, values) if limit is None else Statement(f"{query} LIMIT ?", (*values, limit))


def _of_job(job: str | None) -> list[Where]:
    return [] if job is None else [("job = ?", job)]


def _in_time(column: str, since_unix_s: float | None, until_unix_s: float | None) -> list[Where]:
    since = [] if since_unix_s is None else [(f"{column} >= ?", since_unix_s)]
    return since if until_unix_s is None else [*since, (f"{column} < ?", until_unix_s)]


def _merge_buckets(found: list[Row], bucket_s: int) -> list[Row]:
    """Merge ten-second buckets into longer ones, separately for each attempt."""
    merged: dict[tuple[int, int], Row] = {}
    for row in found:
        start = row["bucket_unix_s"] // bucket_s * bucket_s
        key = (row["attempt"], start)
        row["bucket_unix_s"] = start
        merged[key] = steps.merged(merged[key], row) if key in merged else row
    return list(merged.values())


def _build_records(kind: type[_Record], found: list[Row]) -> tuple[_Record, ...]:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # every kind of records.py is a dataclass
    return tuple(kind(**{name: row[name] for name in names}) for row in found)


def _gpu_sample(row: Row) -> GpuSample:
    values = _recorded_values(GpuReading, row)
    return GpuSample(at_unix_s=row["at_unix_s"], gpu=row["gpu"], source=row["source"], values=values)


def _recorded_values(reading: type, row: Row) -> dict[str, Any]:
    """Return the values of the fields that a reading declares as recorded; a file may be older than a field."""
    return {name: row.get(name) for name, measure in measures_of(reading).items() if measure.record}


def _readable_job(row: Row) -> Job | None:
    try:
        return decode_job(row["state"])
    except UnreadableRowError:
        return None


def _readable_note(row: Row) -> Note | None:
    try:
        return decode_note(row["body"])
    except UnreadableRowError:
        return None


def _readable_incident(row: Row) -> Incident | None:
    try:
        return decode_incident(row["state"])
    except UnreadableRowError:
        return None
