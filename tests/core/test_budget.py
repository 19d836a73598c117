"""The account of restarts."""

from __future__ import annotations

import math

import pytest

from supervisor.core.remedies.budget import ASSUMED_FAULT_S, GAPS_COUNTED, Budget, Ledger
from supervisor.core.scale import Place

from .stories import START

BUDGET = Budget(restarts=3, restarts_per_period=5, period_s=3600.0, backoff_s=(0.0, 5.0, 30.0))


def spend(ledger: Ledger, count: int, *, every_s: float = 1.0, known: bool = True) -> Ledger:
    for number in range(count):
        ledger = ledger.restarted(START.plus(number * every_s), BUDGET, progress_known=known)
    return ledger


def test_restarts_in_a_row_spend_the_budget_and_one_less_does_not() -> None:
    assert spend(Ledger(), 2).spent(START.plus(10), BUDGET, "crash") is None
    reason = spend(Ledger(), 3).spent(START.plus(10), BUDGET, "crash")
    assert reason == "3 restarts in a row without progress (budget 3)"


def test_progress_clears_the_restarts_in_a_row() -> None:
    assert spend(Ledger(furthest_step=10), 3).stepped(Place(11)).spent(START.plus(10), BUDGET, "crash") is None


def test_the_same_step_again_is_no_progress() -> None:
    assert spend(Ledger(furthest_step=10), 3).stepped(Place(10)).in_a_row == 3


def test_time_alone_clears_no_restarts_in_a_row() -> None:
    assert spend(Ledger(), 3).spent(START.plus(1e7), BUDGET, "crash") is not None


def test_restarts_with_progress_are_limited_by_the_period() -> None:
    ledger = Ledger()
    for number in range(5):
        assert ledger.spent(START.plus(number * 60), BUDGET, "crash") is None
        ledger = ledger.restarted(START.plus(number * 60), BUDGET, progress_known=True).stepped(Place(number + 1))
    assert "5 restarts within 1.0 h" in (ledger.spent(START.plus(300), BUDGET, "crash") or "")
    assert ledger.spent(START.plus(3600), BUDGET, "crash") is None


def test_unknown_progress_is_neither_progress_nor_the_lack_of_it() -> None:
    ledger = spend(Ledger(in_a_row=2), 1, known=False)
    assert (ledger.in_a_row, ledger.total, len(ledger.recent_unix_s)) == (2, 1, 1)


def test_the_wait_grows_with_the_restarts_in_a_row_and_stays_at_its_last_value() -> None:
    waits = [Ledger(in_a_row=count).backoff_s(BUDGET) for count in range(5)]
    assert waits == [0.0, 5.0, 30.0, 30.0, 30.0]
    assert Ledger().backoff_s(Budget(backoff_s=())) == 0.0


def test_a_person_clears_what_was_spent_but_not_what_happened() -> None:
    ledger = spend(Ledger(furthest_step=7), 3).forgiven()
    assert ledger.spent(START.plus(10), BUDGET, "crash") is None
    assert (ledger.total, ledger.furthest_step) == (3, 7)


def test_a_wall_clock_that_went_back_does_not_spend_the_budget_from_the_future() -> None:
    assert spend(Ledger(), 5, known=False).spent(START.plus(-7200), BUDGET, "crash") is None


def test_the_time_between_faults_is_hours_until_faults_show_otherwise() -> None:
    day = Budget(period_s=86400.0)
    assert Ledger().mean_fault_s(START, None, day) == pytest.approx(ASSUMED_FAULT_S)
    assert Ledger().mean_fault_s(START.plus(3600), START.unix_s, day) == pytest.approx(ASSUMED_FAULT_S)
    after_one = spend(Ledger(), 1).mean_fault_s(START.plus(3600), START.unix_s - 150.0, day)
    assert after_one == pytest.approx(math.sqrt(ASSUMED_FAULT_S * 150.0))
    after_five = spend(Ledger(), 5, every_s=150.0).mean_fault_s(START.plus(750), START.unix_s - 150.0, day)
    assert 150.0 < after_five < 500.0
    assert spend(Ledger(), 5).mean_fault_s(START.plus(2 * 86400), START.unix_s, day) == pytest.approx(ASSUMED_FAULT_S)


def test_of_many_faults_the_newest_gaps_count() -> None:
    day = Budget(period_s=86400.0)
    ledger = Ledger(recent_unix_s=tuple(START.unix_s + at for at in (0.0, 3600.0, *range(7200, 7200 + 90 * 9, 90))))
    counted = (ASSUMED_FAULT_S, *[90.0] * GAPS_COUNTED)
    found = ledger.mean_fault_s(START.plus(9000), START.unix_s - 3600, day)
    assert found == pytest.approx(math.prod(counted) ** (1 / len(counted)))


def test_faults_in_one_breath_leave_a_time_between_faults() -> None:
    assert spend(Ledger(), 4, every_s=0.0).mean_fault_s(START.plus(1), START.unix_s, Budget()) > 1.0


def test_a_restart_counts_from_its_own_moment_until_its_period_is_over() -> None:
    ledger = Ledger(recent_unix_s=(START.unix_s,) * 5)
    assert ledger.spent(START, BUDGET, "crash") is not None
    assert ledger.spent(START.plus(3599.9), BUDGET, "crash") is not None
    assert ledger.spent(START.plus(3600), BUDGET, "crash") is None
