"""How many steps a tune has left, and keeps for what it has begun."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from supervisor.core.tuning.budget import RECKONED, STEPS, count_left, find_unaffordable
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
