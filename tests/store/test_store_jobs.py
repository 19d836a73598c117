"""A job comes back from the record as it went in, in this boot and in the next."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from record_by_hand import BOOT, OTHER_BOOT, START, at, checkpoint, job, open_store

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import SetBack
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.moments import Moment
from supervisor.store.jobs import UnreadableRowError, decode_job, encode, shift_into_boot, shifted


def test_a_job_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.turn(at(100)):
        store.save_job(job("day"))
        store.save_job(job("night"))
    store.close(at(100))
    again = open_store(tmp_path, at(130))
    assert again.load_jobs(at(130)) == (job("day"), job("night"))
    again.close(at(130))


def test_the_newest_state_of_a_job_is_the_one_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for phase in (Phase.STARTING, Phase.RUNNING, Phase.FINISHED):
        with store.turn(START):
            store.save_job(Job(name="night", since=START, phase=phase))
    assert [item.phase for item in store.load_jobs(START)] == [Phase.FINISHED]
    store.close(START)


def test_after_a_reboot_a_deadline_is_as_far_away_as_the_clock_on_the_wall_says(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.turn(at(70)):
        store.save_job(job())
    store.close(at(70))
    # The retry waits until 90 s; 12 s after the save a new boot is 5 s old.
    rebooted = Moment(5.0, at(82).unix_s)
    (loaded,) = open_store(tmp_path, rebooted, OTHER_BOOT).load_jobs(rebooted)
    assert loaded.retry is not None
    assert rebooted.seconds_since(loaded.retry.not_before) == pytest.approx(-8.0)
    assert loaded.attempt is not None
    assert rebooted.seconds_since(loaded.attempt.launched_at) == pytest.approx(81.0)
    assert loaded.retry.not_before.unix_s == at(90).unix_s
    assert loaded.incident is not None
    assert loaded.incident.flag.since is not None
    assert rebooted.seconds_since(loaded.incident.flag.since) == pytest.approx(63.0)


def test_a_machine_that_wakes_in_the_year_1970_waits_no_longer_than_it_had_to() -> None:
    saved, woken = at(70), Moment(5.0, 100.0)
    moved = shifted(job(), shift_into_boot(saved, woken))
    assert moved.retry is not None
    assert woken.seconds_since(moved.retry.not_before) == pytest.approx(-20.0)


@pytest.mark.parametrize("boot_id", [BOOT, OTHER_BOOT])
def test_a_clock_that_was_set_back_while_no_daemon_ran_is_found_at_the_start(tmp_path: Path, boot_id: str) -> None:
    """By the monotonic clock of one boot, after a reboot by what the record has of a time later than now."""
    store = open_store(tmp_path)
    began = replace(job(), began_unix_s=START.unix_s)
    with store.turn(at(70)):
        store.save_job(began)
    store.close(at(70))
    hour_back = Moment(at(100).monotonic_s if boot_id == BOOT else 5.0, at(100 - 3600).unix_s)
    (loaded,) = open_store(tmp_path, hour_back, boot_id).load_jobs(hour_back)
    assert loaded.began_unix_s is not None
    assert loaded.began_unix_s <= hour_back.unix_s, "what it saves from now on is its own"
    assert loaded.attempt is not None
    assert loaded.attempt.launched_at.unix_s <= hour_back.unix_s
    set_back = SetBack(now_unix_s=hour_back.unix_s, from_unix_s=loaded.clock_before_unix_s or 0.0)
    assert set_back.precedes(at(69).unix_s)
    assert not set_back.precedes(hour_back.unix_s)
    later = Moment(hour_back.monotonic_s + 60, hour_back.unix_s + 60)
    again = open_store(tmp_path, later, boot_id).load_jobs(later)
    assert again[0].clock_before_unix_s == pytest.approx(loaded.clock_before_unix_s), "of the same row the same"


@pytest.mark.parametrize("boot_id", [BOOT, OTHER_BOOT])
def test_a_clock_that_goes_on_or_was_set_ahead_changes_no_job(tmp_path: Path, boot_id: str) -> None:
    store = open_store(tmp_path)
    with store.turn(at(70)):
        store.save_job(job())
    store.close(at(70))
    for ahead_s in (0.0, 7200.0):
        now = Moment(at(71).monotonic_s, at(71 + ahead_s).unix_s)
        (loaded,) = open_store(tmp_path, now, boot_id).load_jobs(now)
        assert (loaded.clock_before_unix_s, loaded.began_unix_s) == (None, job().began_unix_s)


def test_in_the_same_boot_moments_stay_to_the_last_digit(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    odd = replace(job(), since=Moment(1234.567890123, 1763600000.987654))
    with store.turn(START):
        store.save_job(odd)
    store.close(START)
    (loaded,) = open_store(tmp_path, at(3), BOOT).load_jobs(at(3))
    assert loaded == odd


def test_an_old_row_loads_whatever_was_added_or_dropped_since() -> None:
    old = (
        '{"name": "night", "since": {"monotonic_s": 7, "unix_s": 8, "boottime_s": 9}, "phase": "backoff",'
        ' "colour": "red", "limits": {"grace_s": 12.0, "patience_s": 3},'
        ' "attempt": {"number": 4, "launched_at": {"monotonic_s": 1.5, "unix_s": 2.5}}}'
    )
    loaded = decode_job(old)
    assert (loaded.name, loaded.phase, loaded.limits.grace_s, loaded.number) == ("night", Phase.BACKOFF, 12.0, 4)
    assert loaded.limits.kill_wait_s == Job(name="x", since=START).limits.kill_wait_s
    assert loaded.ledger.total == 0


def test_a_row_of_no_known_form_is_left_out_kept_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    with store.turn(START):
        store.save_job(job("day"))
        store.save_job(job("night"))
    store.close(START)
    broken = encode(job()).replace('"stopping"', '"levitating"')
    with sqlite3.connect(tmp_path / "supervisor.db") as connection:
        connection.execute("UPDATE jobs SET state = ? WHERE name = 'night'", (broken,))
    connection.close()
    again = open_store(tmp_path)
    assert [item.name for item in again.load_jobs(START)] == ["day"]
    assert again.note("unreadable job night") == broken
    assert "store.job_unreadable" in caplog.text
    again.close(START)
    with pytest.raises(UnreadableRowError, match="levitating"):
        decode_job(broken)


def test_a_loss_that_is_no_number_comes_back_as_unknown() -> None:
    spoilt = job()
    assert spoilt.attempt is not None
    spoilt = replace(spoilt, attempt=replace(spoilt.attempt, loss=math.nan))
    loaded = decode_job(encode(spoilt))
    assert loaded.attempt is not None
    assert loaded.attempt.loss is None


def test_a_name_that_is_no_unicode_does_not_keep_the_job_from_the_record() -> None:
    loaded = decode_job(encode(replace(job(), reason="cannot open /data/\udcff.pt")))
    assert loaded.reason == "cannot open /data/?.pt"
    assert replace(loaded, reason=job().reason) == job()


def test_a_file_and_its_generations_are_found_in_the_record_and_in_what_waits_for_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    early, late = (checkpoint(epoch, path=f"/state/generation-{epoch}.pt") for epoch in (3, 4))
    own = checkpoint(6)
    other = replace(checkpoint(5, path="/state/generation-5.pt"), source="/runs/night/weights/best.pt")
    early, late = (replace(generation, source="/runs/night/weights/last.pt") for generation in (early, late))
    with store.turn(at(1)):
        for seen in (early, other, own):
            store.save_checkpoint("night", 1, seen, at(1))
    with store.turn(at(2)):
        store.save_checkpoint("night", 1, late, at(2))
        assert store.checkpoints("night", ["/runs/night/weights/last.pt"]) == (own, early, late)
    assert store.checkpoints("night", ["/runs/night/weights/last.pt"]) == (own, early, late)
    assert store.checkpoints("day", ["/runs/night/weights/last.pt"]) == ()
    assert len(store.checkpoints("night") or ()) == 4
    store.close(at(3))


def test_what_failed_of_an_attempts_supervision_comes_back_with_what_works_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    failed = ev.SupervisionChanged(at=at(1), job="night", attempt=2, place="stop", error="no room")
    hung = replace(failed, place="checkpoints night", persistent=True)
    with store.turn(at(2)):
        for event in (failed, hung, replace(failed, at=at(2), recovered=True), replace(failed, attempt=1)):
            store.record_event(event)
    found = store.degraded("night", Attempt(number=2, launched_at=START))
    assert [(change.place, change.recovered) for change in found] == [("stop", False), ("stop", True)]
    store.close(at(2))
