"""Periodic work goes on at its pace, whatever happens to the wall clock, and at no cost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import time_machine
from clocks_by_hand import until
from hypothesis import given
from hypothesis import strategies as st

from supervisor.daemon.periodic import Every, Periodic
from tests.rigs.no_threads import no_threads

ROOT = Path(__file__).resolve().parents[2]
UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
STEPS = [
    timedelta(days=-365),
    timedelta(hours=-1),
    timedelta(seconds=-30),
    timedelta(seconds=30),
    timedelta(days=60),
    timedelta(days=50 * 365),
]
moments = st.timedeltas(timedelta(days=-50 * 365), timedelta(days=60 * 365)).map(lambda away: NOON + away)


@pytest.fixture
def periodic() -> Iterator[Periodic]:
    item = Periodic()
    yield item
    item.stop()


@given(previous=st.none() | moments, now=moments, interval_s=st.floats(0.05, 3600))
def test_the_next_run_lies_ahead_and_no_further_than_one_interval(
    previous: datetime | None, now: datetime, interval_s: float
) -> None:
    planned = Every(interval_s).get_next_fire_time(previous, now)
    assert now < planned <= now + timedelta(seconds=interval_s)


def test_runs_keep_their_rhythm_however_late_each_was_begun() -> None:
    trigger = Every(10)
    late = NOON + timedelta(seconds=3)
    assert trigger.get_next_fire_time(NOON, late) == NOON + timedelta(seconds=10)


@pytest.mark.alone(reason="compares processor time with a limit")
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_clock_that_steps_neither_stops_the_work_nor_makes_up_for_it(periodic: Periodic, step: timedelta) -> None:
    """Of fifty years of missed runs none is made, and no core is taken by reckoning them."""
    runs: list[float] = []
    with time_machine.travel(NOON, tick=True) as traveller:
        periodic.every(0.05, "work", lambda: runs.append(time.perf_counter()))
        periodic.start()
        until(lambda: len(runs) >= 3, "three runs")
        before_s, began_s = time.process_time(), time.perf_counter()
        traveller.shift(step)
        periodic.clock_stepped(datetime.now(UTC))  # noqa: TID251 - the clock that the scheduler sees
        seen = len(runs)
        until(lambda: len(runs) >= seen + 10, "ten more runs")
        spent_s, took_s = time.process_time() - before_s, time.perf_counter() - began_s
        made = len(runs) - seen
    assert made <= took_s / 0.05 + 3
    assert spent_s < 0.5 * took_s + 0.2


@pytest.mark.alone(reason="compares a duration with a limit")
@pytest.mark.parametrize("step", [item for item in STEPS if item > timedelta(0)], ids=str)
def test_a_step_forward_that_nobody_reported_is_no_avalanche_either(periodic: Periodic, step: timedelta) -> None:
    runs: list[float] = []
    with time_machine.travel(NOON, tick=True) as traveller:
        periodic.every(0.05, "work", lambda: runs.append(time.perf_counter()))
        periodic.start()
        until(lambda: len(runs) >= 2, "two runs")
        traveller.shift(step)
        seen, began_s = len(runs), time.perf_counter()
        until(lambda: len(runs) >= seen + 5, "five more runs")
        assert len(runs) - seen <= (time.perf_counter() - began_s) / 0.05 + 3


def test_work_that_hangs_holds_up_no_other_work_and_is_not_begun_twice(periodic: Periodic) -> None:
    release, begun, runs = threading.Event(), [], []

    def hang() -> None:
        begun.append(1)
        release.wait(120)

    periodic.every(0.02, "hangs", hang)
    periodic.every(0.02, "works", lambda: runs.append(1))
    periodic.start()
    try:
        until(lambda: len(runs) >= 10, "the other work to go on")
        assert begun == [1]
    finally:
        release.set()


def test_work_that_raises_is_reported_and_done_again(periodic: Periodic, caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise OSError("no card")

    periodic.every(0.02, "fails", fail)
    periodic.start()
    until(lambda: len(tries) >= 3 and "periodic.skipped" in caplog.text, "three tries")


def test_work_for_which_there_is_no_room_is_named_once_and_done_when_there_is(
    periodic: Periodic, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []
    periodic.start()
    with no_threads():
        periodic.every(0.02, "work", lambda: runs.append(1))
        until(lambda: periodic.problem is not None, "a run that is left out")
        assert "can't start new thread" in str(periodic.problem)
        assert [record.message for record in caplog.records] == ["periodic.unstarted"]
        assert not runs
    until(lambda: len(runs) > 2, "runs")
    assert periodic.problem is None


def test_work_given_again_under_its_name_replaces_the_old(periodic: Periodic) -> None:
    old: list[int] = []
    new: list[int] = []
    periodic.start()
    periodic.every(0.02, "work", lambda: old.append(1))
    until(lambda: len(old) >= 2, "the old work")
    periodic.every(0.02, "work", lambda: new.append(1))
    until(lambda: len(new) >= 2, "the new work")
    seen = len(old)
    until(lambda: len(new) >= 10, "more of the new work")
    assert len(old) <= seen + 1


def test_what_is_wanted_soon_does_not_wait_for_its_turn(periodic: Periodic) -> None:
    runs: list[float] = []
    periodic.every(3600, "work", lambda: runs.append(time.perf_counter()))
    periodic.start()
    for name in ("work", "no such work"):
        periodic.soon(name, NOON)  # long past: at once
    until(lambda: bool(runs), "a run")


WITH_HANGING_WORK = """
import threading
from supervisor.daemon.periodic import Periodic
begun = threading.Event()
def hang():
    begun.set()
    threading.Event().wait()
periodic = Periodic()
periodic.every(0.05, "hangs", hang)
periodic.start()
begun.wait()
periodic.stop()
"""


def test_a_process_whose_periodic_work_hangs_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", WITH_HANGING_WORK], timeout=60, check=False, cwd=ROOT)
    assert ended.returncode == 0
