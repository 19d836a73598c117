"""Read-only access to the database, from any thread or process, whether a daemon runs or not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Table, and_, create_engine, func, or_, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.decisions import Note
from supervisor.core.incident import Incident
from supervisor.core.job import Job
from supervisor.core.measured import measures_of
from supervisor.core.readings import GpuReading, HostReading
from supervisor.core.remedies.context import Experience
from supervisor.store import files, schema, steps, tables
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
from supervisor.store.steps import Row

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Executable, Select

_Record = TypeVar("_Record")


class Archive:
    """A database file opened for reading; every query uses its own connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine = create_engine(
            "sqlite://", creator=lambda: files.open_reader(path), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )

    @classmethod
    def at(cls, url: str) -> Archive:
        """Return the archive of a `sqlite:///` URL. Raises ArchiveError for any other URL."""
        try:
            return cls(files.database_path(url))
        except StoreError as error:
            raise ArchiveError(str(error)) from error

    def check(self) -> None:
        """Raise ArchiveError, with the remedy, unless the file exists and has the schema that this version reads."""
        if not self.path.exists():
            raise ArchiveError(f"{self.path} does not exist: the daemon has recorded nothing yet")
        try:
            with closing(files.open_reader(self.path)) as connection:
                revision = schema.revision_of(connection)
        except ValueError as error:
            raise ArchiveError(f"{self.path} is not a database of this program: {error}") from error
        except sqlite3.Error as error:
            raise ArchiveError(f"{self.path} cannot be read: {error}") from error
        if revision is None:
            raise ArchiveError(f"{self.path} is empty: the daemon has recorded nothing yet")
        refused = schema.refusal(self.path, revision)
        if refused is not None:
            raise ArchiveError(refused)
        if revision != schema.HEAD:
            raise ArchiveError(f"{self.path} has the older schema {revision}: start the daemon to upgrade it")

    # --- jobs, attempts, incidents --------------------------------------------------------------------------------

    def jobs(self) -> tuple[Job, ...]:
        """Return every job as last saved, by name; only the wall-clock part of its moments is valid here."""
        found = self._read(select(tables.jobs).order_by(tables.jobs.c.name))
        return tuple(job for row in found if (job := _readable_job(row)) is not None)

    def attempts(self, job: str, limit: int = 1000) -> tuple[AttemptRecord, ...]:
        """Return the attempts of a job, the newest first."""
        table = tables.attempts
        query = select(table).where(table.c.job == job).order_by(table.c.number.desc()).limit(limit)
        return _build_records(AttemptRecord, self._read(query))

    def incidents(self, job: str | None = None, limit: int = 100) -> tuple[Incident, ...]:
        """Return incidents, the newest first."""
        table = tables.incidents
        query = select(table).order_by(table.c.opened_unix_s.desc()).limit(limit)
        found = self._read(query if job is None else query.where(table.c.job == job))
        return tuple(incident for row in found if (incident := _readable_incident(row)) is not None)

    def incident(self, incident_id: str) -> IncidentStory | None:
        """Return an incident with its flags and decisions in order of time; None if there is no such incident."""
        table = tables.incidents
        found = self._read(select(table).where(table.c.id == incident_id))
        incident = _readable_incident(found[0]) if found else None
        if incident is None:
            return None
        flags, decisions = tables.flags, tables.decisions
        of_attempt = and_(decisions.c.job == incident.job, decisions.c.attempt == incident.attempt)
        relaunch = and_(
            decisions.c.job == incident.job, decisions.c.attempt == incident.attempt + 1, decisions.c.kind == "launch"
        )
        flag_query = select(flags).where(flags.c.job == incident.job, flags.c.attempt == incident.attempt)
        return IncidentStory(
            incident=incident,
            flags=_build_records(FlagRecord, self._read(flag_query.order_by(flags.c.id))),
            decisions=_build_records(
                DecisionRecord,
                self._read(select(decisions).where(or_(of_attempt, relaunch)).order_by(decisions.c.id)),
            ),
        )

    def decisions(self, job: str, limit: int = 100) -> tuple[DecisionRecord, ...]:
        """Return the decisions about a job, the newest first."""
        table = tables.decisions
        query = select(table).where(table.c.job == job).order_by(table.c.id.desc()).limit(limit)
        return _build_records(DecisionRecord, self._read(query))

    def notes(self, job: str | None = None, limit: int = 100) -> tuple[Note, ...]:
        """Return the flags that rules in shadow mode would have acted on, the newest first."""
        table = tables.decisions
        query = select(table).where(table.c.kind == "note").order_by(table.c.id.desc()).limit(limit)
        found = self._read(query if job is None else query.where(table.c.job == job))
        return tuple(note for row in found if (note := _readable_note(row)) is not None)

    def flags(self, job: str, limit: int = 100) -> tuple[FlagRecord, ...]:
        """Return the flags that rose about a job, the newest first."""
        table = tables.flags
        query = select(table).where(table.c.job == job).order_by(table.c.id.desc()).limit(limit)
        return _build_records(FlagRecord, self._read(query))

    def checkpoints(self, job: str) -> tuple[KnownCheckpoint, ...]:
        """Return every checkpoint ever seen of a job, the newest first."""
        table = tables.checkpoints
        found = self._read(select(table).where(table.c.job == job).order_by(table.c.first_seen_unix_s.desc()))
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
        table, attempts = tables.checkpoints, tables.attempts
        used = select(attempts.c.resume_from).where(attempts.c.job == job, attempts.c.resume_from.is_not(None))
        newest = func.max(table.c.modified_ns).over(partition_by=table.c.path).label("newest_ns")
        every = select(table, newest).where(table.c.job == job).subquery()
        old = select(every).where(every.c.first_seen_unix_s < before_unix_s, every.c.path.not_in(used))
        ordered = old.order_by(every.c.first_seen_unix_s, every.c.path, every.c.modified_ns)
        found = self._read(ordered.offset(offset).limit(limit))
        return tuple((checkpoint_of(row), row["newest_ns"] > row["modified_ns"]) for row in found)

    def resumed_saves(self, job: str) -> tuple[tuple[str, int | None, float], ...]:
        """Return path, step and save time (Unix seconds) of the checkpoints that attempts of a job were resumed from.

        A path that was overwritten has several entries.
        """
        table, attempts = tables.checkpoints, tables.attempts
        used = select(attempts.c.resume_from).where(attempts.c.job == job, attempts.c.resume_from.is_not(None))
        found = self._read(
            select(table.c.path, table.c.step, table.c.modified_ns).where(table.c.job == job, table.c.path.in_(used))
        )
        return tuple((row["path"], row["step"], row["modified_ns"] / 1e9) for row in found)

    def proven_saves(self) -> dict[str, float]:
        """Return when the newest proven checkpoint of each job that has one was saved, Unix seconds."""
        table = tables.checkpoints
        newest = func.max(table.c.modified_ns).label("newest_ns")
        found = self._read(select(table.c.job, newest).where(table.c.verdict == "proven").group_by(table.c.job))
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
        table = tables.step_metrics
        query = select(table).where(table.c.job == job, table.c.rank == 0)
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        query = query.where(*_time_conditions(table.c.bucket_unix_s, since_unix_s, until_unix_s))
        found = self._read(query.order_by(table.c.attempt, table.c.bucket_unix_s))
        return _build_records(StepBucket, _merge_buckets(found, max(bucket_s, steps.BUCKET_S)))

    def gpus(self) -> tuple[GpuRecord, ...]:
        """Return every GPU ever seen."""
        return _build_records(GpuRecord, self._read(select(tables.gpus).order_by(tables.gpus.c.gpu)))

    def gpu_samples(
        self,
        gpu: str | None = None,
        since_unix_s: float | None = None,
        until_unix_s: float | None = None,
        limit: int = 10_000,
    ) -> tuple[GpuSample, ...]:
        """Return readings in order of time; at most the newest `limit` of them."""
        query = self._query_newest(tables.gpu_samples, since_unix_s, until_unix_s, limit)
        query = query if gpu is None else query.where(tables.gpu_samples.c.gpu == gpu)
        return tuple(_gpu_sample(row) for row in reversed(self._read(query)))

    def host_samples(
        self, since_unix_s: float | None = None, until_unix_s: float | None = None, limit: int = 10_000
    ) -> tuple[HostSample, ...]:
        """Return readings of the machine in order of time; at most the newest `limit` of them."""
        query = self._query_newest(tables.host_samples, since_unix_s, until_unix_s, limit)
        return tuple(
            HostSample(at_unix_s=row["at_unix_s"], values=_recorded_values(HostReading, row), disks=row["disks"])
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
        query = self._query_newest(tables.process_samples, since_unix_s, until_unix_s, limit)
        return _build_records(ProcessSample, self._read(query.where(tables.process_samples.c.job == job)))[::-1]

    # --- remedies -------------------------------------------------------------------------------------------------

    def remedies(self, job: str | None = None, limit: int = 100) -> tuple[RemedyRecord, ...]:
        """Return the applied remedies, the newest first."""
        table = tables.remedies
        query = select(table).order_by(table.c.at_unix_s.desc()).limit(limit)
        return _build_records(RemedyRecord, self._read(query if job is None else query.where(table.c.job == job)))

    def experience(self) -> tuple[Experience, ...]:
        """Return the results of each remedy on this machine, for all jobs together."""
        return experience_of(self._read(select(tables.remedies)))

    # --- events, alerts, the file itself --------------------------------------------------------------------------

    def events(
        self, job: str | None = None, after_id: int | None = None, limit: int = 100, kind: str | None = None
    ) -> tuple[EventRecord, ...]:
        """Return rare events, all or of one kind, in order of time: those after `after_id`, or else the newest."""
        table = tables.events
        query = select(table) if job is None else select(table).where(or_(table.c.job == job, table.c.job.is_(None)))
        query = query if kind is None else query.where(table.c.kind == kind)
        if after_id is not None:
            return _build_records(
                EventRecord, self._read(query.where(table.c.id > after_id).order_by(table.c.id).limit(limit))
            )
        return _build_records(EventRecord, self._read(query.order_by(table.c.id.desc()).limit(limit)))[::-1]

    def alerts(self, state: str | None = None, limit: int = 100) -> tuple[AlertRecord, ...]:
        """Return alerts, the newest first; `state` is waiting, delivered or failed."""
        table = tables.alerts
        query = select(table).order_by(table.c.queued_unix_s.desc()).limit(limit)
        return _build_records(AlertRecord, self._read(query if state is None else query.where(table.c.state == state)))

    def alert_counts(self) -> tuple[AlertCount, ...]:
        """Return the alerts of each receiver counted by state."""
        table = tables.alerts
        # SQLite takes the other columns from the row with the maximum (its documentation, "Bare columns").
        newest = func.max(func.coalesce(table.c.tried_unix_s, 0.0))
        query = select(
            table.c.sink,
            table.c.state,
            func.count().label("count"),
            func.count(table.c.tried_unix_s).label("tried"),
            newest,
            table.c.tried_unix_s,
            table.c.error,
        ).group_by(table.c.sink, table.c.state)
        return _build_records(AlertCount, self._read(query))

    def _query_newest(
        self, table: Table, since_unix_s: float | None, until_unix_s: float | None, limit: int
    ) -> Select[Any]:
        query = select(table).where(*_time_conditions(table.c.at_unix_s, since_unix_s, until_unix_s))
        return query.order_by(table.c.at_unix_s.desc()).limit(limit)

    def _read(self, query: Executable) -> list[Row]:
        try:
            with self._engine.connect() as connection:
                return [dict(row) for row in connection.execute(query).mappings()]
        except (SQLAlchemyError, sqlite3.Error) as error:
            self.check()
            why = error.orig if isinstance(error, DBAPIError) else error
            raise ArchiveError(f"{self.path} cannot be read: {why}") from error


def _time_conditions(
    column: ColumnElement[Any], since_unix_s: float | None, until_unix_s: float | None
) -> list[ColumnElement[bool]]:
    since = [] if since_unix_s is None else [column >= since_unix_s]
    return since if until_unix_s is None else [*since, column < until_unix_s]


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
    """Return the values of the fields that a reading declares as recorded."""
    return {name: row[name] for name, measure in measures_of(reading).items() if measure.record}


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
