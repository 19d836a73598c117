"""How fast a training steps: stretches of half a minute, without the time between epochs."""

from __future__ import annotations

import pytest

from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.stats.pace import (
    PAUSES_KEPT,
    STRETCHES_KEPT,
    Pace,
    Stretch,
    Usual,
    covered_s,
    step_s_of,
    wait_share_of,
)


def at(monotonic_s: float) -> Moment:
    return Moment(monotonic_s, 1.7e9 + monotonic_s)


def made(step: int, at_s: float, *, epoch: int = 0, waited_s: float | None = None) -> StepRecord:
    return StepRecord(at=at(at_s), step=step, epoch=epoch, data_wait_s=waited_s)


def stretch(end_s: float, steps: int = 10, took_s: float = 30.0, waited_s: float | None = None) -> Stretch:
    return Stretch(at=at(end_s), steps=steps, took_s=took_s, waited_s=waited_s)


def with_stretches(*step_s: float) -> Pace:
    """A pace whose stretches of one step took so long each."""
    pace, at_s = Pace(), 0.0
    pace.add(made(1, at_s), stepping=True)
    for number, took_s in enumerate(step_s, start=2):
        at_s += took_s
        pace.add(made(number, at_s), stepping=True)
    return pace


def test_half_a_minute_of_steps_is_a_stretch() -> None:
    pace = Pace()
    for step in range(1, 8):
        pace.add(made(step, 5.0 * step), stepping=True)
    assert list(pace.stretches) == [stretch(35.0, steps=6, took_s=30.0)]
    pace.add(made(9, 64.9), stepping=True)
    assert len(pace.stretches) == 1, "29.9 s"
    pace.add(made(10, 66.0), stepping=True)
    assert pace.stretches[-1] == stretch(66.0, steps=3, took_s=31.0)
    assert pace.stretches[-1].step_s == pytest.approx(31.0 / 3)
    assert (pace.steps, pace.idle_s) == (9, 0.0)
    assert (pace.first, pace.last) == (made(1, 5.0), made(10, 66.0))


def test_the_wait_for_data_is_that_of_the_steps_of_the_stretch_and_no_longer_than_it() -> None:
    pace = Pace()
    pace.add(made(1, 0.0, waited_s=99.0), stepping=True)
    pace.add(made(2, 10.0, waited_s=3.0), stepping=True)
    pace.add(made(3, 20.0), stepping=True)
    pace.add(made(4, 30.0, waited_s=4.0), stepping=True)
    pace.add(made(5, 60.0, waited_s=500.0), stepping=True)
    pace.add(made(6, 90.0), stepping=True)
    pace.add(made(7, 120.0, waited_s=0.0), stepping=True)
    assert [item.waited_s for item in pace.stretches] == [7.0, 30.0, None, 0.0]


def test_time_between_epochs_and_in_other_stages_is_idle_and_only_the_first_is_a_pause() -> None:
    pace = Pace()
    pace.add(made(1, 0.0), stepping=True)
    pace.add(made(2, 10.0), stepping=True)
    pace.add(made(3, 50.0, epoch=1), stepping=True)
    pace.add(made(4, 60.0, epoch=1), stepping=False)
    pace.add(made(5, 80.0, epoch=1), stepping=True)
    assert list(pace.pauses) == [40.0]
    assert pace.idle_s == 50.0
    assert pace.steps == 4
    assert list(pace.stretches) == [stretch(80.0, steps=2, took_s=30.0)]


def test_a_step_that_was_made_before_and_a_clock_that_runs_back_count_for_nothing() -> None:
    pace = Pace()
    pace.add(made(5, 100.0), stepping=True)
    pace.add(made(5, 110.0), stepping=True)
    pace.add(made(6, 109.0), stepping=True)
    assert (pace.steps, pace.idle_s) == (0, 0.0)
    assert (pace.first, pace.last) == (made(5, 100.0), made(6, 109.0))
    pace.add(made(8, 109.0), stepping=True)
    assert pace.steps == 2, "two steps at one reading of the clock"


def test_stretches_and_pauses_are_kept_in_bounded_number() -> None:
    pace = with_stretches(*(30.0,) * (STRETCHES_KEPT + 3))
    assert len(pace.stretches) == STRETCHES_KEPT
    for epoch in range(1, PAUSES_KEPT + 4):
        pace.add(made(10_000 + epoch, 1e6 + epoch, epoch=epoch), stepping=True)
    assert len(pace.pauses) == PAUSES_KEPT


def test_the_recent_stretches_are_at_least_three_and_cover_the_window() -> None:
    pace = with_stretches(30.0, 31.0, 32.0, 33.0, 34.0)
    now = at(160.0)
    assert [item.took_s for item in pace.recent(1.0, now)] == [32.0, 33.0, 34.0]
    assert [item.took_s for item in pace.recent(99.0, now)] == [32.0, 33.0, 34.0]
    assert [item.took_s for item in pace.recent(99.5, now)] == [31.0, 32.0, 33.0, 34.0]
    assert [item.took_s for item in pace.recent(160.0, now)] == [30.0, 31.0, 32.0, 33.0, 34.0]
    assert pace.recent(160.5, now) == ()
    assert with_stretches(100.0, 100.0).recent(60.0, at(200.0)) == ()
    assert Pace().recent(60.0, now) == ()


def test_recent_stretches_are_too_old_after_the_window_and_two_more() -> None:
    pace = with_stretches(30.0, 30.0, 20.0, 10.0, 40.0)
    last_s = 130.0
    assert pace.recent(60.0, at(last_s + 60.0 + 80.0)) != ()
    assert pace.recent(60.0, at(last_s + 60.0 + 80.1)) == ()
    shorter = with_stretches(30.0, 30.0, 30.0)
    assert shorter.recent(60.0, at(90.0 + 60.0 + 60.0)) != ()
    assert shorter.recent(60.0, at(90.0 + 60.0 + 60.1)) == ()


def test_what_is_usual_leaves_out_the_first_two_stretches() -> None:
    assert with_stretches(30.0, 30.0).usual() is None
    pace = with_stretches(500.0, 400.0, 30.0, 50.0, 40.0)
    assert pace.usual() == Usual(step_s=40.0, fast_step_s=32.0, slow_step_s=48.0, stretches=3)
    assert pace.usual(without=1) == Usual(step_s=40.0, fast_step_s=32.0, slow_step_s=48.0, stretches=2)
    assert pace.usual(without=2) == Usual(step_s=30.0, fast_step_s=30.0, slow_step_s=30.0, stretches=1)
    assert pace.usual(without=3) is None
    assert pace.usual(without=9) is None


def test_what_is_usual_follows_each_stretch() -> None:
    pace = with_stretches(30.0, 30.0, 30.0)
    assert pace.usual() == Usual(step_s=30.0, fast_step_s=30.0, slow_step_s=30.0, stretches=1)
    pace.add(made(5, 150.0), stepping=True)
    later = pace.usual()
    assert later is not None
    assert (later.stretches, later.step_s) == (2, 45.0)


def test_once_the_first_stretches_are_forgotten_none_is_left_out() -> None:
    full = with_stretches(*(30.0,) * STRETCHES_KEPT).usual()
    assert full is not None
    assert full.stretches == STRETCHES_KEPT - 2
    after = with_stretches(*(30.0,) * (STRETCHES_KEPT + 1)).usual()
    assert after is not None
    assert after.stretches == STRETCHES_KEPT


def test_the_median_of_several_stretches_is_their_pace_and_their_share_of_waiting() -> None:
    several = [stretch(30.0, 10, waited_s=3.0), stretch(60.0, 15, waited_s=15.0), stretch(90.0, 1, waited_s=6.0)]
    assert step_s_of(several) == 3.0
    assert wait_share_of(several) == 0.2
    assert covered_s(several) == 90.0
    assert wait_share_of([*several, stretch(120.0)]) is None
