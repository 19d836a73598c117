"""Every second of a job's life stands in one class, and what a fault cost is charged to it."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.readings import Stage
from supervisor.core.reports.account import account
from supervisor.core.reports.strides import Stride, Strides
from supervisor.core.reports.timeline import Life, Use, timeline

T0 = 1_763_600_000.0


def steps(began: float, ended: float, first: int, last: int, data_wait_s: float = 0.0) -> Stride:
    return Stride(
        first_unix_s=T0 + began, last_unix_s=T0 + ended, step_first=first, step_last=last, data_wait_s=data_wait_s
    )


def entered(*stages: tuple[float, str]) -> tuple[tuple[float, str], ...]:
    return tuple((T0 + at, stage) for at, stage in stages)


FIRST = Life(
    number=1,
    launched_unix_s=T0,
    ended_unix_s=T0 + 200,
    resume_step=0,
    from_beginning=True,
    entered=entered((5, "setup"), (20, "warmup"), (30, "step"), (80, "validate"), (90, "step")),
    strides=Strides((steps(30, 80, 1, 51), steps(90, 140, 52, 102))),
    cause="stall",
)
"""Sets up 20 s, warms up 10, trains 50, validates 10, trains 50 more, and hangs 60 s until it is killed."""
SECOND = Life(
    number=2,
    launched_unix_s=T0 + 210,
    ended_unix_s=T0 + 300,
    resume_step=52,
    entered=entered((211, "setup"), (230, "warmup"), (235, "step")),
    strides=Strides((steps(235, 300, 53, 118),)),
    wanted=True,
)


def test_a_night_with_one_hang_is_accounted_to_the_second() -> None:
    night = account((FIRST, SECOND), T0 + 1000)
    assert night.total_s == pytest.approx(300)
    assert night.seconds == pytest.approx(
        {Use.SETUP: 40, Use.COMPILE: 15, Use.TRAIN: 115, Use.VALIDATE: 10, Use.LOST: 50, Use.DOWN: 70}
    )
    assert night.ettr == pytest.approx(125 / 300)


def test_a_fault_costs_the_work_lost_the_time_down_and_the_new_set_up() -> None:
    night = account((FIRST, SECOND), T0 + 1000)
    assert night.cost_s == pytest.approx({"stall": 50 + 70 + 25})
    assert night.faults == {"stall": 1}


def test_an_attempt_that_hung_in_its_set_up_was_down_from_then_on() -> None:
    hung = Life(
        number=1, launched_unix_s=T0, ended_unix_s=T0 + 200, resume_step=0, entered=entered((5, "setup")),
        cause="start_timeout",
    )  # fmt: skip
    spent = account((hung,), T0 + 200)
    assert spent.seconds == pytest.approx({Use.SETUP: 5, Use.DOWN: 195})
    assert spent.cost_s == pytest.approx({"start_timeout": 195})


def test_a_hang_is_down_from_the_last_sign_be_it_a_step_or_a_stage() -> None:
    """Two strides and then a validation: the newest of all of them counts."""

    def find_downs(*stages: tuple[float, str]) -> list[tuple[float, float]]:
        hung = Life(
            number=1,
            launched_unix_s=T0,
            ended_unix_s=T0 + 400,
            cause="hang",
            entered=entered((1, "setup"), *stages),
            strides=Strides((steps(10, 50, 1, 40), steps(60, 100, 41, 80))),
        )
        line = timeline((hung,), T0 + 400)
        return [(row.began_unix_s - T0, row.ended_unix_s - T0) for row in line if row.use is Use.DOWN]

    assert find_downs() == [(100, 400)]
    assert find_downs((70, "validate"), (90, "step")) == [(100, 400)]
    assert find_downs((70, "validate"), (90, "step"), (130, "validate")) == [(130, 400)]


def test_the_last_hour_is_a_window_over_the_same_line() -> None:
    recent = account((FIRST, SECOND), T0 + 300, window_s=100)
    assert recent.total_s == pytest.approx(100)
    assert recent.seconds == pytest.approx({Use.DOWN: 10, Use.SETUP: 20, Use.COMPILE: 5, Use.TRAIN: 65})


def test_waiting_for_data_is_taken_out_of_training() -> None:
    starved = Life(
        number=1,
        launched_unix_s=T0,
        ended_unix_s=None,
        entered=entered((0, "step")),
        strides=Strides((steps(0, 100, 1, 101, data_wait_s=75),)),
    )
    assert account((starved,), T0 + 100).seconds == pytest.approx({Use.TRAIN: 25, Use.DATA_WAIT: 75})


def test_a_resume_from_an_older_generation_loses_the_work_of_both_attempts() -> None:
    third = Life(number=3, launched_unix_s=T0 + 310, ended_unix_s=None, resume_step=1, entered=entered((311, "setup")))
    lives = (FIRST, replace(SECOND, wanted=False, cause="non_finite_loss"), third)
    spent = account(lives, T0 + 320)
    assert spent.seconds[Use.LOST] == pytest.approx(50 + 10 + 50 + 65)
    assert spent.cost_s["non_finite_loss"] == pytest.approx(50 + 10 + 50 + 65 + 10 + 10)


def test_work_that_one_fault_lost_is_not_owed_to_the_next_one_that_resumes_from_the_same_step() -> None:
    second = replace(SECOND, wanted=False, cause="crash", entered=entered((211, "setup")), strides=Strides())
    third = replace(SECOND, number=3, launched_unix_s=T0 + 300, ended_unix_s=None, entered=(), strides=Strides())
    spent = account((FIRST, second, third), T0 + 310)
    assert spent.cost_s == pytest.approx({"stall": 50 + 70 + 1, "crash": 89})


def test_a_triage_between_two_attempts_has_a_class_of_its_own_and_is_owed_to_the_trouble() -> None:
    examined = replace(FIRST, triage=(T0 + 202, T0 + 208))
    night = account((examined, SECOND), T0 + 1000)
    plain = account((FIRST, SECOND), T0 + 1000)
    assert night.seconds[Use.TRIAGE] == pytest.approx(6)
    assert night.seconds[Use.DOWN] == pytest.approx(plain.seconds[Use.DOWN] - 6)
    assert night.cost_s == pytest.approx(plain.cost_s)
    under_way = replace(FIRST, triage=(T0 + 202, math.inf))
    assert account((under_way,), T0 + 260).seconds[Use.TRIAGE] == pytest.approx(58)
    assert Use.TRIAGE not in account((replace(under_way, wanted=True),), T0 + 260).seconds, "its user stopped it"


def test_a_training_begun_again_by_its_user_throws_no_work_away() -> None:
    again = Life(number=2, launched_unix_s=T0 + 300, ended_unix_s=None, resume_step=0, from_beginning=True)
    first = replace(FIRST, cause=None, wanted=True)
    assert Use.LOST not in account((first, again), T0 + 310).seconds


def test_a_job_at_rest_costs_nothing_and_a_given_up_one_is_down() -> None:
    rested = account((FIRST, SECOND), T0 + 10_000)
    assert rested.ended_unix_s == T0 + 300
    given_up = account((FIRST,), T0 + 1000)
    assert given_up.seconds[Use.DOWN] == pytest.approx(860)


def test_between_a_stop_by_its_user_and_the_next_start_it_waits() -> None:
    stopped = replace(FIRST, cause=None, wanted=True)
    spent = account((stopped, replace(SECOND, resume_step=102)), T0 + 300)
    assert spent.seconds[Use.WAITING] == pytest.approx(10)
    assert spent.ettr is not None
    assert spent.total_s - spent.seconds[Use.WAITING] == pytest.approx(290)


def test_a_training_that_nobody_sees_has_no_ratio() -> None:
    unseen = Life(number=1, launched_unix_s=T0, ended_unix_s=T0 + 50, resume_step=0)
    assert account((unseen,), T0 + 50).seconds == {Use.UNSEEN: 50}
    assert account((unseen,), T0 + 50).ettr is None


def test_a_program_that_took_its_time_to_end_was_observed_all_the_time() -> None:
    finished = Life(
        number=1,
        launched_unix_s=T0,
        ended_unix_s=T0 + 110,
        entered=entered((0, "step"), (100, "exiting")),
        strides=Strides((steps(0, 100, 1, 101),)),
        wanted=True,
    )
    spent = account((finished,), T0 + 200)
    assert spent.seconds == pytest.approx({Use.TRAIN: 110})
    assert spent.ettr == 1.0


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.value)
def test_time_in_any_stage_that_is_reported_is_known_in_its_use(stage: Stage) -> None:
    life = Life(number=1, launched_unix_s=T0, ended_unix_s=None, entered=entered((0, stage.value)))
    assert Use.UNSEEN not in account((life,), T0 + 100).seconds


def test_a_job_without_attempts_has_no_account() -> None:
    assert account((), T0).ettr is None
    assert account((), T0).began_unix_s is None


TIMES = st.floats(min_value=-100, max_value=2000, allow_nan=False)
STAGES = st.sampled_from(
    ["setup", "warmup", "step", "validate", "checkpoint", "ended", "exiting", "a stage of tomorrow"]
)


@st.composite
def any_life(draw: st.DrawFn) -> Life:
    launched, length, step = draw(TIMES), draw(st.floats(0, 500)), draw(st.integers(0, 1000))
    return Life(
        number=1,
        launched_unix_s=T0 + launched,
        ended_unix_s=draw(st.sampled_from([None, T0 + launched + length])),
        resume_step=draw(st.none() | st.integers(0, 2000)),
        from_beginning=draw(st.booleans()),
        entered=tuple(sorted((T0 + at, stage) for at, stage in draw(st.lists(st.tuples(TIMES, STAGES), max_size=4)))),
        strides=Strides((steps(launched, launched + length, step, step + 10, draw(st.floats(0, 900))),)),
        cause=draw(st.sampled_from([None, "stall"])),
        wanted=draw(st.booleans()),
    )


@given(lives=st.lists(any_life(), max_size=5), window_s=st.none() | st.floats(1, 3600))
def test_whatever_the_record_says_no_second_is_counted_twice_or_left_out(
    lives: list[Life], window_s: float | None
) -> None:
    line = list(timeline(lives, T0 + 2500))
    assert all(item.seconds > 0 and -1e-6 <= item.data_wait_s <= item.seconds + 1e-6 for item in line)
    for item, following in itertools.pairwise(line):
        assert item.ended_unix_s == following.began_unix_s
    sums = account(lives, T0 + 2500, window_s)
    length = 0.0 if sums.began_unix_s is None or sums.ended_unix_s is None else sums.ended_unix_s - sums.began_unix_s
    assert sums.total_s == pytest.approx(length, abs=1e-3)
    assert sums.ettr is None or -1e-9 <= sums.ettr <= 1 + 1e-9


@pytest.mark.parametrize(("saved", "validated", "lost"), [(80.5, 0.5, 59.5), (89.5, 9.5, 50.5), (91.0, 10.0, 49.0)])
def test_work_is_lost_from_when_the_state_was_saved(saved: float, validated: float, lost: float) -> None:
    """Between the same two steps it may have been saved before the validation, or after it."""
    spent = account((FIRST, replace(SECOND, resume_step=51, resume_saved_unix_s=T0 + saved)), T0 + 300)
    assert spent.seconds[Use.LOST] == pytest.approx(lost)
    assert spent.seconds[Use.VALIDATE] == pytest.approx(validated)


@pytest.mark.parametrize("saved", [-50.0, 205.0])
def test_a_time_of_saving_at_which_an_attempt_did_not_run_is_none_of_its(saved: float) -> None:
    strange = replace(SECOND, resume_saved_unix_s=T0 + saved)
    assert account((FIRST, strange), T0 + 300) == account((FIRST, SECOND), T0 + 300)


# --- attempts that only count their own steps -------------------------------------------------------------------------


def test_of_an_attempt_that_counts_itself_the_work_after_the_save_is_lost_whatever_its_numbers() -> None:
    """It made steps 1 to 102 of its own count; by that count a resume from step 5000 would have lost nothing."""
    itself = replace(FIRST, counts_itself=True)
    later = replace(SECOND, resume_step=5000, resume_saved_unix_s=T0 + 130)
    assert account((itself, later), T0 + 1000).seconds[Use.LOST] == pytest.approx(10)


def test_where_the_step_of_a_save_is_not_known_its_time_says_what_was_lost() -> None:
    later = replace(SECOND, resume_step=None, resume_saved_unix_s=T0 + 100)
    assert account((FIRST, later), T0 + 1000).seconds[Use.LOST] == pytest.approx(40)
    assert Use.LOST not in account((FIRST, replace(SECOND, resume_step=None)), T0 + 1000).seconds


def test_all_of_a_life_is_lost_to_a_save_of_before_it() -> None:
    itself = replace(FIRST, counts_itself=True)
    later = replace(SECOND, resume_step=None, resume_saved_unix_s=T0 - 50)
    assert account((itself, later), T0 + 1000).seconds[Use.LOST] == pytest.approx(110)


def count_calls(lives: Sequence[Life]) -> int:
    """Return how many functions are called for the account of these lives."""
    counted = 0

    def count(_frame: object, event: str, _: object) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        account(lives, T0 + 1e6)
    finally:
        sys.setprofile(None)
    return counted


def test_attempts_that_crash_before_their_first_step_take_as_much_each_however_many_there_are() -> None:
    lives = [
        replace(FIRST, number=number, launched_unix_s=T0 + number, ended_unix_s=T0 + number + 0.5, strides=Strides())
        for number in range(600)
    ]
    resumed = [replace(life, from_beginning=False, resume_step=7) for life in lives]
    assert count_calls(resumed) < 2.5 * count_calls(resumed[:300])
