"""How many steps a tune has left, and keeps for what it has begun."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from supervisor.core.tuning.budget import RECKONED, STEPS, TRACE_STEPS, can_trace, count_left, find_unaffordable
from supervisor.core.tuning.gpu_time import GpuTimes
from supervisor.core.tuning.knob import Facts, Kind, Knob, Phase
from supervisor.core.tuning.session import begin_session

CPU = Facts(device="cpu", processors=4, workers=0, threads=4, fused=False, channels_last=False)
SWITCH = Knob(name="switch", phase=Phase.KERNELS, kind=Kind.NUMERICS, values=lambda _: (True,))


@pytest.mark.parametrize("step_s", [None, 0.0])
def test_steps_whose_time_is_not_known_are_limited_by_their_number_alone(step_s: float | None) -> None:
    planned = int(RECKONED * STEPS)
    assert count_left(0, 0.0, step_s) == planned == 720
    assert count_left(planned - 1, 0.0, step_s) == 1
    assert count_left(planned + 1, 0.0, step_s) == 0


def test_a_tune_plans_with_nine_tenths_of_the_steps_that_it_was_given() -> None:
    assert count_left(0, 0.0, None, 2000) == 1800
    assert count_left(1799, 0.0, None, 2000) == 1
    assert count_left(1801, 0.0, None, 2000) == 0


def test_a_pair_is_begun_only_where_steps_are_left_for_the_longer_way_between_its_settings() -> None:
    """Back to the owner's loader, say: batches that lie ready have to be used up first."""

    def count(held: Mapping[str, object], wanted: Mapping[str, object]) -> int:
        return 10 if held == wanted else 90 if wanted == {} else 30

    session = begin_session((SWITCH,), (), CPU).having(1.0).after_block(0.95)
    one_pair, confirming = 10 + 90, 10 + 90 + 10 + 30
    assert find_unaffordable(session, one_pair + confirming, count) is None
    assert find_unaffordable(session, one_pair + confirming - 1, count) is not None


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
