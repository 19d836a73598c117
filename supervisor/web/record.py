"""The record as the page shows it, read with sqlite3 alone from a file that is opened read-only."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

from supervisor.store import files, schema, series
from supervisor.store.series import AttemptSpan, Columns, Window

Row: TypeAlias = dict[str, object]

SPARK_S = 6 * 3600.0
SPARK_POINTS = 60
INCIDENTS_AT_ONCE = 500
COMPARED_AT_ONCE = 6
_INCIDENTS = """
SELECT id, attempt, opened_unix_s AS at, rule, fault, message, decision, outcome, last_step,
       resumed_unix_s AS resumed_at, lost_steps, downtime_s, reason
FROM incidents WHERE job = ? ORDER BY opened_unix_s DESC LIMIT ?
"""
_JOBS = "SELECT name, phase, attempt, reason, since_unix_s AS since, saved_unix_s AS saved_at FROM jobs ORDER BY name"
_ATTEMPTS = """
SELECT number AS attempt, launched_unix_s AS launched_at, ended_unix_s AS ended_at, resume_step, resume_epoch, reason,
       exit_code, exit_signal
FROM attempts WHERE job = ? ORDER BY number
"""


class RecordError(Exception):
    """The record cannot be read; the text says why."""


class Record:
    """One database file; every question uses a connection of its own. Raises RecordError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def jobs(self) -> list[Row]:
        """Return every recorded job as it was last saved."""
        with self._reading() as connection:
            return _read_rows(connection, _JOBS)

    def sparkline(self, job: str) -> Columns:
        """Return the loss of the last six hours in which the job made steps."""
        with self._reading() as connection:
            spans = series.read_spans(connection, job)
            if not spans:
                return {}
            until = max(span.last_unix_s for span in spans) + 1
            window = Window(since_unix_s=until - SPARK_S, until_unix_s=until, points=SPARK_POINTS)
            steps = series.read_steps(connection, job, window, spans)
            return {"at": [None if at is None else round(at) for at in steps["at"]], "loss": steps["loss"]}

    def training(self, job: str) -> Row:
        """Return the attempts and incidents of a job, and the time that its steps lie in."""
        with self._reading() as connection:
            spans = series.read_spans(connection, job)
            attempts = _read_rows(connection, _ATTEMPTS, job)
            steps = {span.attempt: span for span in spans}
            for attempt in attempts:
                span = steps.get(int(str(attempt["attempt"])))
                attempt["step_first"] = None if span is None else span.step_first
                attempt["step_last"] = None if span is None else span.step_last
            return {
                "attempts": attempts,
                "incidents": _read_rows(connection, _INCIDENTS, job, INCIDENTS_AT_ONCE),
                "since": min((span.first_unix_s for span in spans), default=None),
                "until": max((span.last_unix_s for span in spans), default=None),
            }

    def steps(self, job: str, since: float | None, until: float | None, points: int) -> Row:
        """Return the steps of a job in a window of time; without limits the window of all its steps."""
        with self._reading() as connection:
            spans = series.read_spans(connection, job)
            window = _choose_window(spans, since, until, points)
            steps = series.read_steps(connection, job, window, spans)
            return {**_describe(window), "steps": _relative(steps, window)}

    def samples(self, job: str | None, gpus: list[str], since: float | None, until: float | None, points: int) -> Row:
        """Return the readings of GPUs, of all where none is named, and of a job's processes in a window of time."""
        with self._reading() as connection:
            window = _choose_window(series.read_spans(connection, job) if job else (), since, until, points)
            read = series.read_gpus(connection, gpus, window)
            processes = {} if job is None else _relative(series.read_processes(connection, job, window), window)
            return {
                **_describe(window),
                "gpus": {name: _relative(columns, window) for name, columns in read.items()},
                "processes": processes,
            }

    def compare(self, chosen: list[tuple[str, int | None]], points: int) -> list[Row]:
        """Return the steps of at most six attempts, or of all attempts of a job, in order of their number."""
        with self._reading() as connection:
            found: list[Row] = []
            for job, attempt in chosen[:COMPARED_AT_ONCE]:
                spans = series.read_spans(connection, job)
                columns = series.read_attempt_steps(connection, job, spans, attempt, points)
                first = min((at for at in columns["at"] if at is not None), default=0.0)
                columns["at"] = _offsets(columns["at"], first)
                found.append({"training": job, "attempt": attempt, "since": first, "steps": columns})
            return found

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self.path.exists():
            raise RecordError(f"{self.path} does not exist: the daemon has recorded nothing yet")
        try:
            with closing(files.open_reader(self.path)) as connection:
                reason = schema.unreadable(self.path, connection)
                if reason is not None:
                    raise RecordError(reason)
                yield connection
        except sqlite3.Error as error:
            raise RecordError(f"{self.path} cannot be read: {error}") from error


def _read_rows(connection: sqlite3.Connection, sql: str, *given: object) -> list[Row]:
    cursor = connection.execute(sql, given)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _choose_window(spans: tuple[AttemptSpan, ...], since: float | None, until: float | None, points: int) -> Window:
    first = min((span.first_unix_s for span in spans), default=0.0)
    last = max((span.last_unix_s for span in spans), default=0.0)
    begin = first if since is None else since
    end = last + 1 if until is None else until
    return Window(since_unix_s=math.floor(begin), until_unix_s=max(end, begin + 1), points=points)


def _describe(window: Window) -> Row:
    return {"since": window.since_unix_s, "until": window.until_unix_s, "width_s": window.width_s}


def _relative(columns: Columns, window: Window) -> Columns:
    return {**columns, "at": _offsets(columns["at"], window.since_unix_s)}


def _offsets(times: list[series.Value], since_unix_s: float) -> list[series.Value]:
    """Return times as seconds after `since_unix_s`: a third of the bytes."""
    return [None if at is None else round(at - since_unix_s, 1) for at in times]
