"""What the record keeps of a job is enough to account for every second of it."""

from __future__ import annotations

import sqlite3
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from record_by_hand import START, at, checkpoint, flag, incident, made, open_store

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Fingerprint
from supervisor.core.job import Attempt
from supervisor.core.readings import ExitStatus, Stage
from supervisor.core.reports.account import account
from supervisor.core.reports.timeline import Use
from supervisor.core.triage.finding import Finding
from supervisor.store.archive import STRIDES_AT_ONCE, Archive
from supervisor.store.timelines import read_lives


def entered(seconds: float, stage: Stage, attempt: int = 1) -> ev.StageEntered:
    return ev.StageEntered(at=at(seconds), job="night", attempt=attempt, stage=stage)


def written(seconds: float) -> Fingerprint:
    return Fingerprint(size_bytes=1, modified_ns=round(at(seconds).unix_s * 1e9), inode=1)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """One night: set up for 10 s, steps 11 to 59, a hang until 100, and an attempt since 110 from the beginning."""
    store = open_store(tmp_path)
    first = de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start")
    retry = de.Retry(at=at(100), job="night", attempt=1, reason="stalled", not_before=at(105), flag=flag())
    ended = Attempt(number=1, launched_at=START, last_step=59, exit=ExitStatus(at=at(100), signal=9))
    with store.turn(at(100)):
        store.open_attempt(first, "/state/jobs/night/1")
        store.record_decision(first)
        store.record_event(entered(1, Stage.SETUP))
        store.record_event(entered(10, Stage.STEP))
        store.record_event(entered(10, Stage.STEP))  # a new daemon heard of it again
        store.add_steps(made(range(11, 60), cursor=49))
        store.save_incident(incident())
        store.record_decision(retry)
        store.close_attempt("night", ended, at(100))
    second = de.Launch(at=at(110), job="night", attempt=2, resume_from=None, reason="nothing proven")
    with store.turn(at(110)):
        store.open_attempt(second, "/state/jobs/night/2")
        store.record_decision(second)
        store.record_event(entered(111, Stage.SETUP, 2))
    store.close(at(110))
    return Archive(tmp_path / "supervisor.db")


LONG = 4 * STRIDES_AT_ONCE + 1
PEAK_BYTES = 12_000_000
"""As dicts of all columns they take 30 MB, as strides 1 MB; the rows that are read at once take 4 MB."""


def test_days_of_steps_are_read_whole_and_in_little_memory(archive: Archive) -> None:
    begin_s = 10 * (int(START.unix_s) // 10) + 1000
    columns = "job, attempt, rank, bucket_unix_s, steps, step_first, step_last, first_unix_s, last_unix_s, loss_known"
    rows = [
        (attempt, begin_s + 10 * number, 10 * number, 10 * number + 9, begin_s + 10 * number, begin_s + 10 * number + 9)
        for attempt, count in ((3, 7), (2, LONG))
        for number in range(count)
    ]
    with closing(sqlite3.connect(archive.path)) as record, record:
        record.executemany(
            f"INSERT INTO step_metrics ({columns}, data_wait_known, non_finite) "
            "VALUES ('night', ?, 0, ?, 10, ?, ?, ?, ?, 0, 0, 0)",
            rows,
        )
    tracemalloc.start()
    try:
        first, second = read_lives(archive, "night")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES
    assert (first.strides[0].step_first, first.strides[-1].step_last) == (11, 59)
    assert [stride.step_first for stride in second.strides] == [10 * number for number in range(LONG)]


def test_attempts_come_with_stages_steps_cause_and_what_they_went_on_from(archive: Archive) -> None:
    first, second = read_lives(archive, "night")
    assert [stage for _, stage in first.entered] == ["setup", "step", "step"]
    assert (first.strides[0].step_first, first.strides[-1].step_last) == (11, 59)
    assert sum(stride.data_wait_s for stride in first.strides) == pytest.approx(49 * 0.02)
    assert (first.cause, first.from_beginning, first.wanted) == ("stall (gpu_hang)", True, False)
    assert (second.resume_step, second.from_beginning, second.ended_unix_s) == (0, False, None)


def test_the_night_adds_up(archive: Archive) -> None:
    night = account(read_lives(archive, "night"), at(120).unix_s)
    assert night.total_s == pytest.approx(120)
    assert night.seconds[Use.LOST] == pytest.approx(49, abs=1.1)
    assert night.seconds[Use.DOWN] == pytest.approx(51)
    assert night.ettr == pytest.approx(0, abs=0.02)


def test_a_triage_is_read_from_its_decision_to_its_end(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    triage = de.Triage(at=at(60), job="night", attempt=1, reason="", step=7, looked_for="loss", resume_from=None)
    with store.turn(at(60)):
        store.open_attempt(de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start"), "/s/1")
        store.record_decision(triage)
    with store.turn(at(90)):
        found = Finding(verdict="data", words="img")
        store.record_event(ev.TriageEnded(at=at(90), job="night", attempt=1, finding=found, began_at=at(60)))
    store.close(at(90))
    (only,) = read_lives(Archive(tmp_path / "supervisor.db"), "night")
    assert only.triage == (at(60).unix_s, at(90).unix_s)


def test_a_restart_that_somebody_asked_for_is_no_trouble(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.turn(at(50)):
        store.open_attempt(de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start"), "/s/1")
        store.record_event(entered(0, Stage.STEP))
        store.add_steps(made(range(1, 50), cursor=49))
        asked = de.Retry(at=at(50), job="night", attempt=1, reason="asked", not_before=at(50), counts=False)
        store.record_decision(asked)
        store.close_attempt("night", Attempt(number=1, launched_at=START, exit=ExitStatus(at=at(50), code=0)), at(50))
    with store.turn(at(55)):
        again = de.Launch(at=at(55), job="night", attempt=2, resume_from=checkpoint(0), reason="newest")
        store.open_attempt(again, "/s/2")
    store.close(at(55))
    first, second = read_lives(Archive(tmp_path / "supervisor.db"), "night")
    assert (first.wanted, second.resume_step) == (True, 100)
    assert account((first, second), at(60).unix_s).seconds[Use.WAITING] == pytest.approx(5)


def test_what_an_attempt_went_on_from_has_the_time_of_its_last_saving_before_the_launch(tmp_path: Path) -> None:
    """The file was written again since, at a step of the same number, and at another before."""
    store = open_store(tmp_path)
    used = replace(checkpoint(0), fingerprint=written(40.0))
    again = replace(checkpoint(0), fingerprint=written(70.0))
    earlier = replace(checkpoint(0), step=50, fingerprint=written(45.0))
    with store.turn(at(50)):
        store.open_attempt(de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start"), "/s/1")
        store.open_attempt(de.Launch(at=at(50), job="night", attempt=2, resume_from=used, reason="newest"), "/s/2")
        for item in (used, again, earlier):
            store.save_checkpoint("night", 1, item, at(50))
    store.close(at(80))
    first, second = read_lives(Archive(tmp_path / "supervisor.db"), "night")
    assert first.resume_saved_unix_s is None
    assert second.resume_saved_unix_s == pytest.approx(at(40.0).unix_s)


@pytest.mark.parametrize("outcome", ["checkpoint_ignored", "resumed_later"])
def test_an_attempt_that_began_again_kept_nothing_and_one_that_counts_itself_is_known(
    tmp_path: Path, outcome: str
) -> None:
    """It was given a checkpoint of step 100, and its agent told what its steps count, the newest word last."""
    store = open_store(tmp_path)
    with store.turn(at(50)):
        store.open_attempt(de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start"), "/s/1")
        store.save_incident(replace(incident(), outcome=outcome))
        store.open_attempt(
            de.Launch(at=at(50), job="night", attempt=2, resume_from=checkpoint(0), reason="newest"), "/s/2"
        )
        for scale in ("training", "attempt"):
            facts: dict[str, object] = {"scale": scale, "first": 1}
            store.record_event(
                ev.AgentReported(at=at(51), job="night", attempt=2, agent_event=ev.AgentEvent.COUNTING, facts=facts)
            )
    store.close(at(55))
    first, second = read_lives(Archive(tmp_path / "supervisor.db"), "night")
    assert (first.counts_itself, second.counts_itself) == (False, True)
    assert (second.resume_step, second.resume_saved_unix_s) == (0, None)


@pytest.mark.parametrize(("went_on_step", "lost_s"), [(49, 10), (None, 0), (0, 49)])
def test_an_attempt_that_found_its_own_file_lost_what_it_made_again(
    tmp_path: Path, went_on_step: int | None, lost_s: float
) -> None:
    """It was given no checkpoint; its first step shows where it went on from, or nothing does."""
    store = open_store(tmp_path)
    closed = replace(incident(), outcome="restarted", loads_itself=True, went_on_step=went_on_step)
    again = de.Launch(at=at(70), job="night", attempt=2, resume_from=None, reason="its own file", loads_itself=True)
    with store.turn(at(70)):
        store.open_attempt(de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start"), "/s/1")
        store.record_event(entered(10, Stage.STEP))
        store.add_steps(made(range(11, 60), cursor=49))
        store.save_incident(closed)
        store.open_attempt(again, "/s/2")
        store.record_decision(again)
    store.close(at(80))
    lives = read_lives(Archive(tmp_path / "supervisor.db"), "night")
    assert [life.resume_step for life in lives] == [0, went_on_step]
    assert account(lives, at(80).unix_s).seconds.get(Use.LOST, 0) == pytest.approx(lost_s, abs=1.1)


def test_a_training_that_finds_its_own_file_loses_nothing_by_a_restart_that_somebody_asked_for(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    asked = de.Retry(at=at(60), job="night", attempt=1, reason="asked", not_before=at(60), counts=False)
    again = de.Launch(at=at(70), job="night", attempt=2, resume_from=None, reason="its own file", loads_itself=True)
    with store.turn(at(70)):
        store.open_attempt(de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start"), "/s/1")
        store.add_steps(made(range(11, 60), cursor=49))
        store.record_decision(asked)
        store.open_attempt(again, "/s/2")
        store.record_decision(again)
    store.close(at(80))
    first, second = read_lives(Archive(tmp_path / "supervisor.db"), "night")
    assert (second.from_beginning, second.resume_step) == (False, None)
    assert account((first, second), at(80).unix_s).seconds.get(Use.LOST, 0) == 0
