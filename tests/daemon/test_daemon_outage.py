"""How long no daemon ran is recorded by the next one, and listed with the attempts that lived meanwhile."""

from __future__ import annotations

from pathlib import Path

from supervisor.control.present import job_account, outage_entry
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Attempt
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, HostReading, Stage
from supervisor.daemon.record.outage import record_end, record_outage
from supervisor.store.archive import Archive
from supervisor.store.store import Store
from supervisor.store.timelines import read_lives, read_unwatched

START = Moment(1000.0, 1_763_600_000.0)


def opened(folder: Path, seconds: float, boot_id: str = "one") -> Store:
    return Store.open(f"sqlite:///{folder}/supervisor.db", START.plus(seconds), boot_id)


def left_by_a_daemon(folder: Path, seconds: float, ended: float | None = None) -> Archive:
    """The record of a daemon that launched an attempt and was killed so many seconds later."""
    store = opened(folder, 0)
    launch = de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start")
    with store.turn(START):
        store.open_attempt(launch, "/state/jobs/night/1")
        store.record_decision(launch)
        if ended is not None:
            over = Attempt(number=1, launched_at=START, exit=ExitStatus(at=START.plus(ended), code=0))
            store.close_attempt("night", over, START.plus(ended))
    last = START.plus(seconds)
    with store.turn(last):
        store.add_host_sample(HostReading(at=last))
    store.close(last)
    return Archive(folder / "supervisor.db")


def start_again(folder: Path, seconds: float) -> None:
    store = opened(folder, seconds)
    record_outage(store, START.plus(seconds))
    store.close(START.plus(seconds))


def test_the_time_since_a_killed_daemon_wrote_last_is_an_outage(tmp_path: Path) -> None:
    archive = left_by_a_daemon(tmp_path, 60)
    start_again(tmp_path, 335)
    (unwatched,) = read_unwatched(archive, "night")
    outage = outage_entry(unwatched)
    assert (outage.job, outage.attempt) == ("night", 1)
    assert (outage.at - START.unix_s, outage.until - START.unix_s) == (60, 335)
    account = job_account("night", read_lives(archive, "night"), [unwatched], START.plus(400).unix_s)
    assert (account.outages, account.outages_s) == (1, 275)


def test_a_daemon_that_ended_in_order_was_there_until_its_end(tmp_path: Path) -> None:
    archive = left_by_a_daemon(tmp_path, 60)
    store = opened(tmp_path, 70)
    record_end(store, START.plus(100))
    store.close(START.plus(100))
    start_again(tmp_path, 335)
    assert [found.outage.seconds for found in read_unwatched(archive, "night")] == [235]


def test_a_time_that_a_training_wrote_hides_no_outage(tmp_path: Path) -> None:
    archive = left_by_a_daemon(tmp_path, 60)
    store = opened(tmp_path, 61)
    with store.turn(START.plus(61)):
        store.record_event(ev.StageEntered(at=START.plus(1e9), job="night", attempt=1, stage=Stage.STEP))
    store.close(START.plus(61))
    start_again(tmp_path, 335)
    assert [found.outage.seconds for found in read_unwatched(archive, "night")] == [275]


def test_what_was_written_with_the_clock_years_ahead_hides_no_outage(tmp_path: Path) -> None:
    archive = left_by_a_daemon(tmp_path, 60)
    store = opened(tmp_path, 61)
    for ahead in (Moment(START.monotonic_s + 62, START.unix_s + 6e8), START.plus(63)):
        with store.turn(ahead):
            store.add_host_sample(HostReading(at=ahead))
    store.close(START.plus(63))
    start_again(tmp_path, 335)
    assert [found.outage.seconds for found in read_unwatched(archive, "night")] == [272]


def test_outages_in_which_nothing_lived_are_not_listed(tmp_path: Path) -> None:
    archive = left_by_a_daemon(tmp_path, 60, ended=50)
    start_again(tmp_path, 335)
    assert read_unwatched(archive, "night") == ()
    assert len(archive.events(kind="daemon_away")) == 1


def test_a_short_restart_is_not_listed(tmp_path: Path) -> None:
    archive = left_by_a_daemon(tmp_path, 60)
    start_again(tmp_path, 63)
    assert read_unwatched(archive, "night") == ()


def test_the_first_start_and_a_clock_set_back_are_no_outage(tmp_path: Path) -> None:
    start_again(tmp_path, 0)
    archive = left_by_a_daemon(tmp_path, 60)
    start_again(tmp_path, 30)
    assert archive.events(kind="daemon_away") == ()


def test_an_attempt_that_ended_during_an_outage_is_listed_with_the_full_outage(tmp_path: Path) -> None:
    archive = left_by_a_daemon(tmp_path, 60)
    start_again(tmp_path, 335)
    store = opened(tmp_path, 336)
    over = Attempt(number=1, launched_at=START, exit=ExitStatus(at=START.plus(200), code=1))
    with store.turn(START.plus(336)):
        store.close_attempt("night", over, START.plus(200))
    store.close(START.plus(336))
    assert [found.outage.seconds for found in read_unwatched(archive, "night")] == [275]
