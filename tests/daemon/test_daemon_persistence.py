"""What the loop lives through is in the database afterwards, once and whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.apply_decision import after_decision
from supervisor.core.apply_event import after_event
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, Stage
from supervisor.core.stats.learned_limits import Learned
from supervisor.daemon.alerts.alerting import Announcer
from supervisor.daemon.job_state import JobState
from supervisor.daemon.record.persistence import (
    EVENTS_AT_ONCE,
    EVENTS_PER_HOUR,
    KERNEL_BOOT,
    KERNEL_CURSOR,
    KERNEL_SEQUENCE,
    EventBudget,
    StoreRecord,
)
from supervisor.store.archive import Archive
from supervisor.store.store import Store

T = Moment(100.0, 1_000_100.0)
FLAG = RedFlag(rule="crash", severity=Severity.CRITICAL, at=T, message="ended with status 1", at_start=True)
SAVED = Checkpoint(path="/a.pt", fingerprint=Fingerprint(size_bytes=1, modified_ns=1, inode=1), step=10)


class Night:
    """A job that goes through decisions and events, each one recorded."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(f"sqlite:///{folder / 'record.db'}", T, "boot")
        self.archive = Archive(self.store.path)
        announcer = Announcer(store=self.store, host="here")
        self.record = StoreRecord(self.store, announcer, lambda job, attempt: folder / job / str(attempt), "boot")
        self.job = Job(name="night", since=T)

    def decide(self, decision: de.Decision) -> None:
        before, self.job = self.job, after_decision(self.job, decision)
        with self.record.turn(T):
            self.record.decision(before, self.job, decision)

    def happen(self, event: ev.Event) -> None:
        before, self.job = self.job, after_event(self.job, event)
        with self.record.turn(T):
            self.record.event(event, None)
            self.record.job(before, self.job, event)

    def crash(self, attempt: int) -> None:
        self.decide(de.Launch(at=T, job="night", attempt=attempt, resume_from=SAVED, reason="again"))
        self.happen(ev.Exited(at=T, job="night", attempt=attempt, status=ExitStatus(at=T, code=1)))
        self.decide(
            de.Retry(at=T, job="night", attempt=attempt, reason="crash", not_before=T, flag=replace(FLAG, at=T))
        )


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    item = Night(tmp_path)
    yield item
    item.store.close(T)


def test_an_incident_whose_next_attempt_never_stepped_is_reported_as_overtaken(night: Night) -> None:
    night.crash(1)
    night.crash(2)
    outcomes = {incident.id: incident.outcome for incident in night.archive.incidents()}
    assert outcomes == {"night-1": "overtaken", "night-2": "open"}


def test_an_attempt_is_recorded_from_its_launch_to_its_exit(night: Night) -> None:
    night.crash(1)
    (attempt,) = night.archive.attempts("night")
    assert (attempt.resume_from, attempt.resume_step, attempt.exit_code) == ("/a.pt", 10, 1)
    assert attempt.ended_unix_s == T.unix_s


def test_what_the_agent_reported_before_a_restart_of_the_daemon_is_recorded_once(night: Night) -> None:
    night.decide(de.Launch(at=T, job="night", attempt=1, resume_from=None, reason="start"))
    output = ev.AgentReported(
        at=T, job="night", attempt=1, agent_event=ev.AgentEvent.PLAN, facts={"epochs": 3}, offset=40
    )
    for known_offset in (0, 40):
        with night.record.turn(T):
            night.record.event(output, JobState(job=night.job, rules=(), agent_offset=known_offset))
    kinds = [event.kind for event in night.archive.events("night")]
    assert kinds.count("agent_reported") == 1
    assert night.store.cursors("night", 1).agent_log_bytes == 40


def test_what_a_rule_in_shadow_would_have_done_is_kept_with_its_diagnosis(night: Night) -> None:
    diagnosis = Diagnosis(causes=("a deadlock in the loader (the seventh of its kind)",))
    flag = replace(FLAG, rule="stall", shadow=True, diagnosis=diagnosis)
    night.decide(de.Launch(at=T, job="night", attempt=1, resume_from=None, reason="start"))
    night.decide(de.Note(at=T, job="night", attempt=1, flag=flag))
    night.store.flush(T)
    (note,) = night.archive.notes("night")
    assert (note.flag.rule, note.flag.shadow, note.flag.diagnosis) == ("stall", True, diagnosis)
    assert night.archive.notes("other") == ()
    assert night.archive.flags("night") == ()
    assert night.archive.incidents() == ()


def test_what_was_learned_outlives_the_attempt_for_this_set_up_alone(night: Night) -> None:
    learned = Learned()
    for _ in range(2000):
        learned.add(Stage.STEP, 0.4)
    night.record.keep_learned("night", "batch=4", learned)
    assert night.record.learned("night", "batch=4") == learned
    assert night.record.learned("night", "batch=8") == Learned()
    assert night.record.learned("day", "batch=4") == Learned()
    night.store.set_note("learned limits of night: batch=4", "{half a wor")
    assert night.record.learned("night", "batch=4") == Learned()


def test_the_place_in_the_kernels_log_is_kept_for_the_log_that_was_read(night: Night) -> None:
    """The sequence of /dev/kmsg says nothing about the journal, and what a uevent tells moves neither."""
    places = []
    for output in (
        ev.KernelReported(at=T, findings=(), sequence=7),
        ev.KernelReported(at=T, findings=(), cursor="s=a;i=1"),
        ev.KernelReported(at=T, findings=(), lost_lines=1),
        ev.KernelReported(at=T, findings=(), sequence=9),
    ):
        with night.record.turn(T):
            night.record.event(output, None)
        places.append((night.store.note(KERNEL_SEQUENCE), night.store.note(KERNEL_CURSOR)))
    assert places == [("7", ""), ("", "s=a;i=1"), ("", "s=a;i=1"), ("9", "")]
    assert night.store.note(KERNEL_BOOT) == "boot"


def test_what_one_training_says_without_end_is_bounded_in_the_record_and_nobody_elses_is(night: Night) -> None:
    """A word each millisecond for a minute, beside a job that says one a second."""
    output = ev.AgentReported(
        at=T, job="night", attempt=1, agent_event=ev.AgentEvent.ALLOCATOR, facts={"reserved_bytes": 1}
    )
    words = EventBudget()
    kept = {"night": 0, "other": 0}
    for number in range(60_000):
        now = T.plus(number / 1000)
        kept["night"] += words.take(replace(output, at=now), now)
        if number % 1000 == 0:
            kept["other"] += words.take(replace(output, at=now, job="other"), now)
    assert kept["night"] <= EVENTS_AT_ONCE + 60 * EVENTS_PER_HOUR / 3600
    assert kept["other"] == 60
    assert words.take(ev.Exited(at=T, job="night", attempt=1, status=ExitStatus(at=T, code=1)), T)


def test_a_word_that_is_not_recorded_any_more_is_still_known_to_have_been_read(night: Night) -> None:
    output = ev.AgentReported(
        at=T, job="night", attempt=1, agent_event=ev.AgentEvent.ALLOCATOR, facts={"reserved_bytes": 1}
    )
    for number in range(EVENTS_AT_ONCE + 50):
        with night.record.turn(T):
            night.record.event(replace(output, offset=number + 1), None)
    night.store.flush(T)
    assert night.store.cursors("night", 1).agent_log_bytes == EVENTS_AT_ONCE + 50
    with closing(sqlite3.connect(night.store.path)) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (EVENTS_AT_ONCE,)
