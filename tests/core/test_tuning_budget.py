"""How many steps a tune has left, and keeps for what it has begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from supervisor.core.tuning.budget import (
    COMPILING_S,
    RECKONED,
    STEPS,
    TRACE_STEPS,
    UNFORESEEN,
    can_trace,
    count_left,
    find_too_late,
    find_unaffordable,
    is_over,
)
from supervisor.core.tuning.gpu_time import GpuTimes
from supervisor.core.tuning.knob import Facts, Kind, Knob, Phase
from supervisor.core.tuning.session import begin_session

CPU = Facts(device="cpu", processors=4, workers=0, threads=4, fused=False, channels_last=False)
SWITCH = Knob(name="switch", phase=Phase.KERNELS, kind=Kind.NUMERICS, values=lambda _: (True,))


@pytest.mark.parametrize("step_s", [None, 0.0])
def test_steps_whose_time_is_not_known_are_limited_by_their_number_alone(step_s: float | None) -> None:
    planned = int(RECKONED * STEPS)
    assert count_left(0, 0.0, step_s) == planned == 688
    assert count_left(planned - 1, 0.0, step_s) == 1
    assert count_left(planned + 1, 0.0, step_s) == 0


def test_a_tune_tries_values_in_most_of_the_steps_that_it_was_given() -> None:
    assert count_left(0, 0.0, None, 2000) == 1720
    assert count_left(1719, 0.0, None, 2000) == 1
    assert count_left(1721, 0.0, None, 2000) == 0


def test_what_is_compiled_is_begun_only_with_time_left_for_that() -> None:
    compiled = replace(SWITCH, after_review=True)
    session = begin_session((compiled,), (), CPU).having(1.0)
    assert find_too_late(session, COMPILING_S) is None
    assert "--for gives it more" in (find_too_late(session, COMPILING_S - 1) or "")
    begun = session.after_block(1.0).after_block(0.9)
    assert find_too_late(begun, 1.0) is None, "it has been compiled"
    assert find_too_late(begin_session((SWITCH,), (), CPU).having(1.0), 1.0) is None


def test_a_pair_is_begun_only_where_steps_are_left_for_the_longer_way_between_its_settings() -> None:
    """Back to the owner's loader, say: batches that lie ready have to be used up first."""

    def count(held: Mapping[str, object], wanted: Mapping[str, object]) -> int:
        return 10 if held == wanted else 90 if wanted == {} else 30

    session = begin_session((SWITCH,), (), CPU).having(1.0).after_block(0.95)
    one_pair, confirming = 10 + 90, 10 + 90 + 10 + 30
    assert find_unaffordable(session, one_pair + confirming, count) is None
    assert find_unaffordable(session, one_pair + confirming - 1, count) is not None


def test_a_pair_of_blocks_that_alternate_needs_a_switch_for_each() -> None:
    less = GpuTimes(steps_s={frozenset(): 1.0, frozenset({("switch", True)}): 0.8})
    session = begin_session((SWITCH,), (), CPU, less).having(1.0)
    for block_s in (0.8, 1.2, 1.0):
        session = session.after_block(block_s)
    assert session.trial is not None
    assert len(session.trial.comparison.pairs) == 2

    def count(held: Mapping[str, object], wanted: Mapping[str, object]) -> int:
        return 10 if held == wanted else 90 if wanted == {} else 30

    one_pair, confirming = 30 + 90, 10 + 90 + 10 + 30
    assert find_unaffordable(session, one_pair + confirming, count) is None
    assert find_unaffordable(session, one_pair + confirming - 1, count) is not None


def test_the_last_comparison_may_take_all_steps_and_no_more() -> None:
    last = STEPS - UNFORESEEN - TRACE_STEPS
    assert count_left(0, 0.0, None, to_end=True) == last
    assert count_left(last - 20, 1000.0, 1.0, to_end=True) == 20
    assert count_left(STEPS + 20, 1000.0, 1.0, to_end=True) == 0
    assert count_left(2500, 25.0, 0.01, to_end=True) == 500, "thirty seconds of fast steps are more"

    def count(held: Mapping[str, object], wanted: Mapping[str, object]) -> int:
        return 10 if held == wanted else 30

    session = begin_session((SWITCH,), (), CPU)
    assert not is_over(session, 0, count), "an arm is given up where steps are to be left for the last comparison"
    while session.trial is not None and session.trial.arm is not None:
        session = session.after_block(0.8 if session.wanted else 1.0)
    two_pairs = 10 + 30 + 10 + 30
    assert [is_over(session, left, count) for left in (two_pairs, two_pairs - 1)] == [False, True]
    session = session.after_block(0.9)
    assert not is_over(session, 0, count), "a pair that was begun is ended"
    session = session.after_block(1.0)
    assert [is_over(session, left, count) for left in (10 + 30, 10 + 30 - 1)] == [False, True], "one of the two is left"
    session = session.after_block(1.0).after_block(0.9)
    assert session.wanted is not None
    assert [is_over(session, left, count) for left in (10 + 30, 10 + 30 - 1)] == [False, True], "one more"
    assert not is_over(begin_session((), (), CPU), 0, count)


def test_steps_that_are_fast_are_limited_by_thirty_seconds_of_them() -> None:
    assert count_left(0, 0.0, 0.01) == 3000
    assert count_left(2500, 25.0, 0.01) == 500
    assert count_left(0, 0.0, 0.1) == RECKONED * STEPS, "three hundred are fewer"


def test_what_is_begun_first_needs_two_pairs_and_the_last_comparison() -> None:
    """From one block to the next: 1 step of the owner's settings, 20 to the arm's, 300 of these, 4000 back."""

    def count(held: Mapping[str, object], wanted: Mapping[str, object]) -> int:
        return {("", ""): 1, ("", "switch"): 20, ("switch", "switch"): 300, ("switch", ""): 4000}[
            "".join(held), "".join(wanted)
        ]

    def is_affordable(blocks: int, left: int) -> bool:
        session = begin_session((SWITCH,), (), CPU)
        for _ in range(blocks):
            session = session.having(1.0)
        return find_unaffordable(session, left, count) is None

    confirming = 300 + 4000 + 1 + 20
    two_pairs = 1 + 20 + 300 + 4000
    assert is_affordable(0, two_pairs + confirming)
    assert not is_affordable(0, two_pairs + confirming - 1)
    assert is_affordable(1, two_pairs - 1 + confirming), "the first block was made"
    assert not is_affordable(1, two_pairs - 1 + confirming - 1)


def test_what_is_not_affordable_says_how_many_steps_are_left() -> None:
    session = begin_session((SWITCH,), (), CPU)
    assert find_unaffordable(session, 7, lambda _held, _wanted: 10) == (
        "7 steps of this tune are left, too few to try and confirm it: --steps gives it more"
    )
    half = session.after_block(1.0).after_block(0.9).after_block(0.9)
    assert find_unaffordable(half, 0, lambda _held, _wanted: 10) is None, "a pair that was begun is ended"
    assert find_unaffordable(begin_session((), (), CPU), 0, lambda _held, _wanted: 10) is None


def test_steps_are_traced_where_two_pairs_and_the_last_comparison_have_steps_left_besides() -> None:
    session = begin_session((SWITCH,), (), CPU, GpuTimes(is_traceable=True)).after_block(1.0).after_block(0.96)
    two_pairs, confirming = 4 * 10, 4 * 10
    assert can_trace(session, TRACE_STEPS + two_pairs + confirming, lambda _held, _wanted: 10)
    assert not can_trace(session, TRACE_STEPS + two_pairs + confirming - 1, lambda _held, _wanted: 10)
    assert not can_trace(session.after_block(0.96), STEPS, lambda _held, _wanted: 10), (
        "no switch follows the next block"
    )
    assert not can_trace(begin_session((), (), CPU), STEPS, lambda _held, _wanted: 10)
