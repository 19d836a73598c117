"""What an attack measures goes on through restarts of the daemon: only the time in which it was away is left out."""

from __future__ import annotations

import pytest
from observer import SETTLED_S, since_up_s, up_s

EACH_20_S = [(begin_s, begin_s + 4.0) for begin_s in (20.0, 40.0, 60.0, 80.0)]
"""Restarts of four seconds, after which the daemon has as long as ever to settle."""
UP_A_ROUND_S = 20.0 - 4.0 - SETTLED_S


def test_the_time_away_and_the_time_to_settle_are_left_out() -> None:
    assert up_s([], 3.0, 10.0) == 7.0
    assert up_s(EACH_20_S, 10.0, 20.0) == 10.0
    assert up_s(EACH_20_S, 15.0, 22.0) == 5.0, "it is away"
    assert up_s(EACH_20_S, 21.0, 26.0) == 0.0, "it settles"
    assert up_s(EACH_20_S, 29.0, 89.0) == pytest.approx(3 * UP_A_ROUND_S)


@pytest.mark.parametrize("wanted_s", [2.0, 12.0, 30.0, 36.0])
def test_a_step_is_due_whatever_the_limit_is_though_the_daemon_is_killed_sooner_each_time(wanted_s: float) -> None:
    since_s = since_up_s(EACH_20_S, wanted_s, 95.0)
    assert up_s(EACH_20_S, since_s, 95.0) == pytest.approx(wanted_s, abs=0.002)
    assert 0.0 < since_s <= 95.0 - wanted_s
