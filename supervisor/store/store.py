"""The interface through which the deciding thread writes the database; once it is open, file errors raise nothing."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from supervisor.core import events as ev
from supervisor.core.apply_event import after_earlier_clock, after_event
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.decisions import Decision, Launch
from supervisor.core.flags import RedFlag
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, Job
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, HostReading, ProcessReading
from supervisor.core.remedies.context import Experience
from supervisor.core.remedies.trials import Trial
from supervisor.store import files, rows, sql, statements, steps
from supervisor.store.cursors import Cursors, cursors_of
from supervisor.store.database import Database
from supervisor.store.errors import StoreError
from supervisor.store.experience import experience_of
from supervisor.store.jobs import UnreadableRowError, decode_job, shift_into_boot, shifted
from supervisor.store.opening import prepare
from supervisor.store.outbox import WAITING, NewAlert, NextTry, Outbox, QueuedAlert, alert_of
from supervisor.store.prune import Retention
from supervisor.store.sql import Statement
from supervisor.store.steps import Row
from supervisor.store.writer import Writer

__all__ = ["Cursors", "NewAlert", "QueuedAlert", "Store", "StoreError"]

log = logging.getLogger(__name__)

CURSORS_KEPT = 8
"""Attempts of a job before the present one whose cursors stay in memory: a late report may still come from them."""

ALERTS_KNOWN = 10_000
"""Alerts whose ids stay in memory, so that none is queued twice."""

CHANGED_KIND = "supervision_changed"
CHANGES_READ = 1000
UNREADABLE = "unreadable job"
"""Prefix of the notes that preserve jobs which this version cannot read."""
_CHECKPOINTS = "SELECT * FROM checkpoints WHERE {where} ORDER BY first_seen_unix_s"
# The time uses the index; the clock may have been set since, so the attempt is asked for as well.
_CHANGES = """
SELECT body FROM events WHERE at_unix_s >= ? AND job = ? AND attempt = ? AND kind = ? ORDER BY id LIMIT ?"""


class Store:
    """The open database, for one thread; made by `Store.open`.

    Writes are queued and committed with their turn. While the file cannot be written, the bounded queue keeps the
    important rows; they are written when the file works again.
    """

    def __init__(self, path: Path, writer: Writer, boot_id: str, notices: tuple[str, ...]) -> None:
        self.path = path
        self.notices = notices
        """What was done on opening: a schema upgraded, a damaged file renamed."""
        self._writer = writer
        self._boot_id = boot_id
        self._outbox = Outbox()
        self._cursors: dict[tuple[str, int], Cursors] = {}
        self._gpus: dict[str, Row] = {}
        self._notes: dict[str, str] = {}
        self._trials: dict[tuple[str, int], Row] = {}
        self._alerts: dict[str, str | None] = {}
        """The newest alerts that were ever queued, by id, each with its job; oldest first."""
        self._alerts_of_turn: list[str] = []

    @classmethod
    def open(cls, url: str, now: Moment, boot_id: str) -> Store:
        """Open the database of a `sqlite:///` URL, upgrading it first where it is older.

        A file that cannot be written (read-only, full disk) opens with `problem` set. Raises StoreError where a person
        must act: another database than SQLite, an unknown schema, a failed upgrade, a folder that cannot be written.
        """
        path = files.database_path(url)
        notices = prepare(path, now.unix_s)
        store = cls(path, Writer(Database(path), now), boot_id, notices)
        store._load()
        return store

    @property
    def problem(self) -> str | None:
        """Why nothing can be written at present, None while writing works."""
        return self._writer.problem

    @contextmanager
    def turn(self, now: Moment) -> Iterator[None]:
        """Commit the changes of one event together; if the body raises, none of them is kept.

        Steps, samples and notes alone wait for the next such commit, or a second.
        """
        before = (dict(self._cursors), self._outbox.copy(), dict(self._notes), dict(self._trials))
        self._alerts_of_turn = []
        try:
            with self._writer.turn(now):
                yield
        except BaseException:
            self._cursors, self._outbox, self._notes, self._trials = before
            for alert_id in self._alerts_of_turn:
                self._alerts.pop(alert_id, None)
            raise

    def flush(self, now: Moment) -> None:
        """Commit the queued rows, also after a problem; turns do so themselves after a second."""
        self._writer.flush(now)

    def close(self, now: Moment) -> None:
        """Commit the queued rows and close the file; with a commit thread, in that thread."""
        self._writer.close(now)

    # --- a commit thread ------------------------------------------------------------------------------------------

    def commit_beside(self, run: Callable[[Callable[[], None]], None]) -> None:
        """Have commits run by `run` from now on, which returns at once and does one work after the other.

        Until then each turn returns when its rows are in the file. From then on `prune`, `forget_checkpoints`,
        `delete_job` and `close` are called where `run` does its work, everything else where the turns are.
        """
        self._writer.commit_beside(run)

    @property
    def unsettled_turn(self) -> int | None:
        """The number of the last turn while its rows are on their way to the file; None where none are."""
        return self._writer.unsettled_turn

    def is_settled(self, turn: int, now: Moment) -> bool:
        """Whether the rows of a turn are in the file, or cannot be written at present."""
        return self._writer.is_settled(turn, now)

    def settle(self, now: Moment) -> None:
        """Take in the end of a commit, and begin the next one where rows wait that are urgent."""
        self._writer.settle(now)

    @property
    def awaits_commit(self) -> bool:
        """Whether rows wait that are committed as soon as the commit in progress has ended; in any thread."""
        return self._writer.awaits_commit

    def await_urgent(self, limit_s: float) -> bool:
        """Wait until what turns by now had committed at once is in the file; for any thread but that of the turns.

        Return False where it is not there after `limit_s`, and at once where nothing can be written at present.
        """
        return self._writer.await_urgent(limit_s)

    # --- jobs and their attempts ----------------------------------------------------------------------------------

    def load_jobs(self, now: Moment) -> tuple[Job, ...]:
        """Return every job, with the moments of an earlier boot converted to this one.

        A row that this version cannot read is kept under the note `unreadable job NAME` and left out. Raises StoreError
        where the file cannot be read: to take that for "no jobs" would start a second copy of each.
        """
        found = self._writer.read(Statement("SELECT * FROM jobs"))
        if found is None:
            raise StoreError(f"{self.path} cannot be read; check its disk")
        self._writer.remember_jobs(found)
        newest = {row["name"]: row for row in (*found, *self._writer.waiting(statements.JOB))}
        rebooted = any(row["boot_id"] != self._boot_id for row in newest.values())
        written_until = self.last_written_unix_s() if rebooted else None
        jobs = (self._job_of(newest[name], now, written_until) for name in sorted(newest))
        return tuple(job for job in jobs if job is not None)

    def last_written_unix_s(self, before_unix_s: float = math.inf) -> float | None:
        """Return when a daemon last wrote a job, a reading of the host or a note; None where none did.

        Only times of the daemon's own clock count: that of an event may be what a training wrote. Times from
        `before_unix_s` on are left out.
        """
        known: list[float] = []
        for query in (
            "SELECT max(saved_unix_s) AS newest FROM jobs WHERE saved_unix_s < ?",
            "SELECT max(at_unix_s) AS newest FROM host_samples WHERE at_unix_s < ?",
            "SELECT max(at_unix_s) AS newest FROM notes WHERE at_unix_s < ?",
        ):
            for row in self._writer.read(Statement(query, (before_unix_s,))) or ():
                known += [row["newest"]] if row["newest"] is not None else []
        return max(known, default=None)

    def save_job(self, job: Job) -> None:
        """Save the present state of a job."""
        self._writer.put(statements.JOB, job.name, rows.job_row(job, self._boot_id, self._writer.now))

    def open_attempt(self, launch: Launch, folder: str) -> None:
        """Record that an attempt was launched, and the folder that it writes to."""
        earlier = [key for key in self._cursors if key[0] == launch.job and key[1] < launch.attempt - CURSORS_KEPT]
        for key in earlier:  # later queries read them from the file
            del self._cursors[key]
        self._cursors.setdefault((launch.job, launch.attempt), Cursors())  # nothing of it was read before
        self._writer.put(statements.ATTEMPT_OPENED, (launch.job, launch.attempt), rows.opened_row(launch, folder))

    def close_attempt(self, job: str, attempt: Attempt, at: Moment) -> None:
        """Record how an attempt ended, once all its processes have."""
        self._writer.put(statements.ATTEMPT_CLOSED, (job, attempt.number), rows.closed_row(job, attempt, at))

    def delete_job(self, job: str, note_prefix: str) -> int:
        """Delete the rows of a job in the file, in the commit thread where there is one; return the rows deleted.

        Raises StoreError.
        """
        return self._writer.forget_job(job, note_prefix, f"{UNREADABLE} {job}")

    def drop_job(self, job: str, note_prefix: str) -> None:
        """Forget what is known or queued of a job, but for its alerts."""
        self._writer.drop_job(job, note_prefix)
        self._cursors = {key: cursors for key, cursors in self._cursors.items() if key[0] != job}
        self._trials = {key: row for key, row in self._trials.items() if key[0] != job}
        self._alerts = {key: of for key, of in self._alerts.items() if of != job or key in self._outbox}
        self._notes = {
            key: value
            for key, value in self._notes.items()
            if not key.startswith(note_prefix) and key != f"{UNREADABLE} {job}"
        }

    # --- steps and checkpoints ------------------------------------------------------------------------------------

    def add_steps(self, event: ev.StepsMade) -> None:
        """Record steps and the cursor after them in one commit; steps recorded before change nothing."""
        cursors = self.cursors(event.job, event.attempt)
        if cursors.reached(event):
            return
        for row in steps.bucket_rows(event):
            key = (event.job, event.attempt, event.rank, row["bucket_unix_s"])
            self._writer.put(statements.STEPS, key, row)
        self._keep_cursors(event.job, event.attempt, cursors.after(event))

    def cursors(self, job: str, attempt: int) -> Cursors:
        """Return how far an attempt's files were read; zeros where not known."""
        known = self._cursors.get((job, attempt))
        if known is None:
            query = Statement("SELECT * FROM attempts WHERE job = ? AND number = ?", (job, attempt))
            found = self._writer.read(query)
            known = self._cursors[(job, attempt)] = cursors_of(found[0]) if found else Cursors()
        return known

    def save_offsets(
        self, job: str, attempt: int, *, output_bytes: int | None = None, agent_log_bytes: int | None = None
    ) -> None:
        """Record how far output and agent log were read; None leaves a position unchanged."""
        cursors = self.cursors(job, attempt)
        if output_bytes is not None:
            cursors = replace(cursors, output_bytes=output_bytes)
        if agent_log_bytes is not None:
            cursors = replace(cursors, agent_log_bytes=agent_log_bytes)
        self._keep_cursors(job, attempt, cursors)

    def save_checkpoint(self, job: str, attempt: int, checkpoint: Checkpoint, now: Moment) -> None:
        """Record a checkpoint; a known verdict is kept when the checkpoint is seen again without one."""
        row = rows.checkpoint_row(job, attempt, checkpoint, now)
        self._writer.put(statements.CHECKPOINT, _checkpoint_key(row), row)

    def checkpoints(self, job: str, files: Collection[str] | None = None) -> tuple[Checkpoint, ...] | None:
        """Return every checkpoint ever seen of a job, the first seen first; or only some files and their generations.

        May be called in any thread once there is a commit thread.
        None where the file cannot be read: unknown, which is not "none" (none would restart the training from the
        beginning).
        """
        where, values = "job = ?", [job]
        if files is not None:
            named = sql.placeholders(files)
            where, values = f"{where} AND (source IN ({named}) OR path IN ({named}))", [job, *files, *files]
        query = Statement(_CHECKPOINTS.format(where=where), values)
        waiting = self._writer.waiting(statements.CHECKPOINT)  # first: a commit may write them meanwhile
        found = self._writer.read(query)
        if found is None:
            return None
        known = {_checkpoint_key(row): row for row in found}
        for row in waiting:
            if row["job"] == job and (files is None or row["source"] in files or row["path"] in files):
                key = _checkpoint_key(row)
                known[key] = statements.newer_knowledge(known[key], row) if key in known else row
        return tuple(rows.checkpoint_of(row) for row in known.values())

    def forget_checkpoints(self, job: str, gone: Iterable[Checkpoint]) -> int:
        """Delete the rows of checkpoints that no longer exist; return the rows deleted."""
        found = [rows.checkpoint_row(job, 0, checkpoint, self._writer.now) for checkpoint in gone]
        return self._writer.forget("checkpoints", [_checkpoint_key(row) for row in found])

    # --- samples --------------------------------------------------------------------------------------------------

    def add_gpu_samples(self, readings: Iterable[GpuReading]) -> None:
        """Record one round of readings over all GPUs."""
        for reading in readings:
            self._writer.append(statements.GPU_SAMPLE, rows.gpu_sample_row(reading))
            row = rows.gpu_row(reading)
            known = {name: value for name, value in row.items() if value is not None}
            gpu = {**self._gpus.get(reading.gpu, row), **known, "seen_unix_s": None}
            if self._gpus.get(reading.gpu) != gpu:
                self._gpus[reading.gpu] = gpu
                self._writer.put(statements.GPU, reading.gpu, {**gpu, "seen_unix_s": reading.at.unix_s})

    def add_host_sample(self, reading: HostReading) -> None:
        """Record one reading of the host."""
        self._writer.append(statements.HOST_SAMPLE, rows.host_sample_row(reading))

    def add_process_sample(self, job: str, attempt: int, reading: ProcessReading) -> None:
        """Record one reading of an attempt's process tree."""
        self._writer.append(statements.PROCESS_SAMPLE, rows.process_sample_row(job, attempt, reading))

    # --- events, decisions ----------------------------------------------------------------------------------------

    def record_event(self, event: ev.Event) -> None:
        """Record a rare event; events that occur every second have their own tables and are not recorded here."""
        row = rows.event_row(event)
        if row is not None:
            self._writer.append(statements.EVENT, row)

    def degraded(self, job: str, attempt: Attempt) -> tuple[ev.SupervisionChanged, ...]:
        """Return how parts of an attempt's supervision failed and recovered, oldest first, without unreadable rows."""
        values = (attempt.launched_at.unix_s, job, attempt.number, CHANGED_KIND, CHANGES_READ)
        found = []
        for row in self._writer.read(Statement(_CHANGES, values)) or ():
            with suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(row["body"], type=ev.SupervisionChanged))
        return tuple(supervision_changed for supervision_changed in found if not supervision_changed.persistent)

    def record_flag(self, job: str, attempt: int, flag: RedFlag) -> None:
        """Record that a flag was raised."""
        self._writer.append(statements.FLAG, rows.flag_row(job, attempt, flag))

    def record_decision(self, decision: Decision) -> None:
        """Record a decision."""
        self._writer.append(statements.DECISION, rows.decision_row(decision))

    def save_incident(self, incident: Incident) -> None:
        """Save the present state of an incident."""
        self._writer.put(statements.INCIDENT, incident.id, rows.incident_row(incident))

    def save_trial(self, job: str, trial: Trial) -> None:
        """Save a remedy that was tried and its outcome so far."""
        row = rows.remedy_row(job, trial)
        self._trials[(job, trial.attempt)] = row
        self._writer.put(statements.REMEDY, (job, trial.attempt), row)

    def experience(self) -> tuple[Experience, ...]:
        """Return how often each remedy helped and failed on this machine, over all jobs."""
        return experience_of(self._trials.values())

    # --- alerts ---------------------------------------------------------------------------------------------------

    def queue_alert(self, alert: NewAlert, now: Moment) -> bool:
        """Queue an alert for delivery; return False if this id was queued before, delivered or not."""
        if alert.id in self._alerts:
            return False
        self._alerts[alert.id] = alert.job
        self._alerts_of_turn.append(alert.id)
        while len(self._alerts) > ALERTS_KNOWN:
            del self._alerts[next(iter(self._alerts))]
        queued = QueuedAlert(
            id=alert.id,
            sink=alert.sink,
            type=alert.type,
            job=alert.job,
            body=alert.body,
            queued_unix_s=now.unix_s,
            due=now,
        )
        given_up = self._outbox.add(queued)
        for queued_alert in (queued, given_up) if given_up else (queued,):
            self._writer.put(statements.ALERT, queued_alert.id, queued_alert.row())
        return True

    def due_alerts(self, now: Moment, limit: int) -> tuple[QueuedAlert, ...]:
        """Return the alerts that are due, each once until `alert_tried` reports its result."""
        return self._outbox.due(now, limit)

    def put_back_alerts(self, alert_ids: Iterable[str]) -> None:
        """Return alerts that were handed out to the queue untried; they stay due."""
        self._outbox.put_back(alert_ids)

    def alert_tried(self, tried: ev.AlertTried, next_try_s: NextTry) -> QueuedAlert | None:
        """Record the result of a delivery and when it is tried next; return the alert, None where it is unknown."""
        alert = self._outbox.tried(tried, next_try_s)
        if alert is not None:
            self._writer.put(statements.ALERT, alert.id, alert.row())
        return alert

    def withdraw_alert(self, alert_id: str, why: str, now: Moment) -> None:
        """Record that an alert which waits is not needed any more."""
        alert = self._outbox.withdraw(alert_id, why, now)
        if alert is not None:
            self._writer.put(statements.ALERT, alert.id, alert.row())

    def hasten_alerts(self, sink: str, now: Moment) -> None:
        """Make the waiting alerts of a receiver due now."""
        self._outbox.hasten(sink, now)

    def waiting_alerts(self) -> tuple[QueuedAlert, ...]:
        """Return the alerts that are not delivered yet."""
        return self._outbox.waiting()

    # --- notes and housekeeping -----------------------------------------------------------------------------------

    def note(self, key: str) -> str | None:
        """Return a note, None where there is none."""
        return self._notes.get(key)

    def set_note(self, key: str, value: str) -> None:
        """Save a note; it is written with the next commit."""
        if self._notes.get(key) != value:
            self._notes[key] = value
            row = {"key": key, "value": value, "at_unix_s": self._writer.now.unix_s}
            self._writer.put(statements.NOTE, key, row)

    def prune(self, now: Moment, retention: Retention, expiry_unix_s: float | None = None) -> int:
        """Delete a bounded number of expired rows; return the rows deleted. To be called about once a minute.

        Ages are reckoned from `expiry_unix_s`; None: from `now`.
        """
        return self._writer.prune(now, retention, now.unix_s if expiry_unix_s is None else expiry_unix_s)

    def _load(self) -> None:
        now = self._writer.now
        waiting = self._writer.read(Statement("SELECT * FROM alerts WHERE state = ?", (WAITING,)))
        self._outbox = Outbox({row["id"]: alert_of(row, now) for row in waiting or ()})
        self._notes = {row["key"]: row["value"] for row in self._writer.read(Statement("SELECT * FROM notes")) or ()}
        newest = Statement("SELECT id, job FROM alerts ORDER BY queued_unix_s DESC LIMIT ?", (ALERTS_KNOWN,))
        self._alerts = {row["id"]: row["job"] for row in reversed(self._writer.read(newest) or ())}
        tried = self._writer.read(Statement("SELECT * FROM remedies")) or ()
        self._trials = {(row["job"], row["attempt"]): row for row in tried}

    def _job_of(self, row: Row, now: Moment, written_until_unix_s: float | None) -> Job | None:
        try:
            job = decode_job(row["state"])
        except UnreadableRowError as error:
            log.error("store.job_unreadable", extra={"fields": {"job": row["name"], "error": str(error)}})
            self.set_note(f"{UNREADABLE} {row['name']}", row["state"])
            return None
        saved = Moment(row["saved_monotonic_s"], row["saved_unix_s"])
        if row["boot_id"] == self._boot_id:
            return after_event(job, ev.ClockStepped(at=now, by_s=now.clock_set_since(saved)))
        return after_earlier_clock(shifted(job, shift_into_boot(saved, now)), now.unix_s, written_until_unix_s)

    def _keep_cursors(self, job: str, attempt: int, cursors: Cursors) -> None:
        if self._cursors.get((job, attempt)) != cursors:
            self._cursors[(job, attempt)] = cursors
            self._writer.put(statements.PROGRESS, (job, attempt), cursors.row(job, attempt))


def _checkpoint_key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("job", "path", "size_bytes", "modified_ns", "inode"))
