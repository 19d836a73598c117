"""What pairs of starts prove: little where they are few, whatever their spread is, and nothing by chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.core.stats.student import get_upper_quantile
from supervisor.core.tuning.compare import Outcome, Verdict
from supervisor.core.tuning.start_comparison import ERROR, LOOKS, PAIRS_MAX, StartComparison, get_modes_chance

OFF_BY_1_PERCENT = (0.01, -0.01)
"""Of two starts of the same settings: they differ by a deviation of 1.41 %."""


def compared(*pairs: tuple[float, float], to: StartComparison | None = None) -> StartComparison:
    """Return a comparison of pairs, each given by the logarithms of the owner's time and of the arm's."""
    comparison = to or StartComparison()
    for owner, arm in pairs:
        comparison = comparison.after(math.exp(owner), math.exp(arm))
    return comparison


def gaining(gain: float, *offs: float) -> StartComparison:
    """Return a comparison in which starts of either kind are off by as much, and the arm gains."""
    return compared(*((off, off - math.log1p(gain)) for off in offs))


def settle(comparison: StartComparison) -> Verdict:
    verdict = comparison.verdict()
    assert verdict is not None
    return verdict


def test_four_pairs_prove_what_is_beyond_students_limit_of_six_degrees() -> None:
    offs, deviation = OFF_BY_1_PERCENT * 2, 0.01 * math.sqrt(4 / 3)
    limit = get_upper_quantile(ERROR / LOOKS, 6) * deviation * math.sqrt(1 / 2)
    assert math.expm1(limit) == pytest.approx(0.043, abs=0.001), "3.7 times the deviation between starts"
    assert settle(gaining(1.01 * math.expm1(limit), *offs)).outcome is Outcome.ADOPTED
    assert gaining(0.99 * math.expm1(limit), *offs).verdict() is None


def test_no_gain_is_proven_by_fewer_starts_than_modes_make_one_of_in_one_of_200_arms() -> None:
    """All owner's starts in the slow mode and all of the arm's in the quick one: of six in 1 of 64, of eight in 256."""
    assert [get_modes_chance(pairs, pairs) for pairs in (3, 4)] == [1 / 64, 1 / 256]
    for pairs in (2, 3):
        assert gaining(10.0, *(*OFF_BY_1_PERCENT, 0.0)[:pairs]).verdict() is None
    assert settle(gaining(10.0, *OFF_BY_1_PERCENT * 2)).outcome is Outcome.ADOPTED


def test_modes_make_a_gain_of_few_starts_and_many_others_oftener_than_of_as_many_of_each() -> None:
    assert get_modes_chance(2, 6) == pytest.approx(0.25**2 * 0.75**6), "where one start in four is quick"
    assert get_modes_chance(2, 6) > get_modes_chance(4, 4)


def test_each_of_several_arms_is_proven_by_more_starts() -> None:
    assert StartComparison(error=ERROR / 3).pairs_to_prove == 5
    assert StartComparison(error=ERROR / 20).pairs_to_prove == PAIRS_MAX == StartComparison().pairs_max
    many = StartComparison(error=ERROR / 100)
    assert many.pairs_to_prove == many.pairs_max > PAIRS_MAX, "as many as it takes"


def test_starts_as_the_owner_has_them_now_count_for_the_next_arm() -> None:
    first = gaining(0.5, *OFF_BY_1_PERCENT * 2)
    assert (first.pairs_to_prove, first.next_arm(is_adopted=True, goes_on=False).pairs_to_prove) == (4, 3)
    refused = gaining(0.0, *OFF_BY_1_PERCENT * 2).next_arm(is_adopted=False, goes_on=False)
    third = gaining(0.0, *OFF_BY_1_PERCENT * 2).next_arm(is_adopted=False, goes_on=True)
    assert (len(refused.known), len(third.known)) == (4, 3), "the last one is the next arm's first"


def test_what_modes_may_not_spend_of_the_error_of_an_arm_is_left_to_the_next_one() -> None:
    first = StartComparison(error=ERROR / 3)
    second = compared((0.0, -1.0), (0.0, -1.0), to=first).next_arm(is_adopted=True, goes_on=False)
    assert second.spare == pytest.approx(ERROR / 3 - 0.5**10)


@pytest.mark.parametrize("slowest", [0.0, -0.001])
def test_an_arm_of_which_one_start_is_no_clearer_quicker_than_one_without_is_not_settled(slowest: float) -> None:
    """Seven of eight starts in the mode that makes it a gain happen in 1 of 32 tunes."""
    comparison = compared((0.0, -0.1), (0.001, -0.1), (0.001, -0.101), (0.001, slowest))
    assert settle(comparison).outcome is Outcome.NOT_SETTLED
    assert settle(compared((0.0, -0.1), (0.001, -0.1), (0.001, -0.101), (0.001, -0.09))).outcome is Outcome.ADOPTED


def test_an_arm_of_which_a_start_is_slower_than_one_without_is_given_up_after_two_pairs() -> None:
    assert settle(compared((0.0, -0.5), (0.5, 0.01))).outcome is Outcome.NOT_SETTLED


def test_each_look_at_the_pairs_has_an_equal_share_of_the_error() -> None:
    offs = (0.01, -0.01) * 3
    for pairs in range(2, PAIRS_MAX + 1):
        comparison = gaining(0.1, *offs[:pairs])
        gain, degrees = comparison.gain(), 2 * (pairs - 1)
        radius = get_upper_quantile(0.001, degrees) * comparison.spread * math.sqrt(2 / pairs)
        assert math.log1p(gain.low) == pytest.approx(math.log1p(0.1) - radius)


def test_starts_of_the_arms_before_make_the_deviation_of_the_next_one_known_better() -> None:
    offs = OFF_BY_1_PERCENT * 2
    first = gaining(0.0, *offs)
    alone = gaining(0.04, *offs)
    behind = first.next_arm(is_adopted=False, goes_on=False)
    for off in offs:
        behind = compared((off, off - math.log1p(0.04)), to=behind)
    assert behind.spread < alone.spread, "the owner's six starts are alike"
    assert alone.verdict() is None
    assert settle(behind).outcome is Outcome.ADOPTED


def test_what_was_adopted_is_what_the_next_arms_starts_are_alike_to() -> None:
    first = gaining(0.5, *OFF_BY_1_PERCENT).next_arm(is_adopted=True, goes_on=False)
    adopted = -math.log1p(0.5)
    second = compared(*((adopted + off, adopted + off) for off in OFF_BY_1_PERCENT), to=first)
    assert second.spread == pytest.approx(0.01 * math.sqrt(8 / 5)), "three groups of eight starts"


def test_a_start_that_is_the_next_arms_first_is_counted_once() -> None:
    first = compared((0.0, 0.0), (0.03, 0.0)).next_arm(is_adopted=False, goes_on=True)
    second = compared((0.03, 0.0), (0.0, 0.0), to=first)
    assert second.spread == pytest.approx(math.sqrt(2 * 0.03**2 / 3 / 4)), "0, 3 and 0 % of three starts, not of four"


def test_of_an_arm_before_no_more_count_than_the_pairs_that_are_always_made() -> None:
    short = gaining(0.1, *OFF_BY_1_PERCENT)
    long = gaining(0.1, *OFF_BY_1_PERCENT, 0.2, -0.2)
    ends = [item.next_arm(is_adopted=False, goes_on=False) for item in (short, long)]
    assert (ends[0].before, ends[0].alike) == (ends[1].before, ends[1].alike)
    assert ends[0].spread == ends[1].spread


@pytest.mark.parametrize(
    "of_start", [lambda start: start, lambda start: -start, lambda start: 5 * math.exp(-start / 3)]
)
def test_a_drift_from_start_to_start_is_no_gain_however_long_it_lasts(of_start: Callable[[int], float]) -> None:
    times = [0.2 * of_start(start) for start in range(2 * PAIRS_MAX)]
    comparison = StartComparison()
    for number, (first, second) in enumerate(zip(times[::2], times[1::2], strict=True)):
        comparison = compared((second, first) if number % 2 else (first, second), to=comparison)
        verdict = comparison.verdict()
        assert verdict is None or verdict.outcome is not Outcome.ADOPTED


def test_a_gain_that_starts_hide_is_not_settled_and_named_with_the_starts_that_would_prove_it() -> None:
    verdict = settle(gaining(0.1, 0.05, -0.05))
    assert (verdict.outcome, verdict.pairs) == (Outcome.NOT_SETTLED, 2)
    assert verdict.why == (
        "not settled: faster by 10.0% after 2 pairs of starts; starts differ by 7.1%; "
        "about 24 starts more would be needed to prove that"
    )
    assert settle(gaining(0.04, 0.05, -0.05)).why.endswith("; more than 96 starts more would be needed to prove that")
    assert settle(gaining(0.01, 0.05, -0.05)).why == (
        "not settled: faster by 1.0% after 2 pairs of starts; starts differ by 7.1%"
    ), "a gain that is not worth a change"


def test_an_arm_whose_two_pairs_are_clearly_slower_is_refused() -> None:
    verdict = settle(gaining(-0.2, 0.05, -0.05))
    assert (verdict.outcome, verdict.why, verdict.pairs) == (Outcome.REFUSED, "slower by 20%", 2)
    assert verdict.gain.gain == pytest.approx(-0.2)


def test_one_pair_settles_nothing_however_slow_it_was() -> None:
    assert gaining(-0.5, 0.0).verdict() is None


def test_an_arm_that_seems_slower_and_is_hidden_by_the_spread_is_not_settled() -> None:
    assert settle(gaining(-0.02, 0.05, -0.05)).why == (
        "not settled: slower by 2.0% after 2 pairs of starts; starts differ by 7.1%"
    )


def test_an_arm_that_cannot_gain_what_is_worth_a_change_is_refused_as_such() -> None:
    verdict = settle(gaining(0.0, 0.0, 0.0))
    assert verdict.outcome is Outcome.REFUSED
    assert verdict.why.startswith("gains at most")


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=2, max_size=PAIRS_MAX))
@example([(1e6, 1e-6), (1e-6, 1e6)])
def test_a_comparison_ends_and_adopts_only_what_was_faster_on_the_average(pairs: list[tuple[float, float]]) -> None:
    comparison = StartComparison()
    for owner_s, arm_s in pairs:
        comparison = comparison.after(owner_s, arm_s)
    verdict = comparison.verdict()
    if len(pairs) == PAIRS_MAX:
        assert verdict is not None
    if verdict is not None and verdict.outcome is Outcome.ADOPTED:
        assert verdict.gain.low > 0
        assert math.fsum(math.log(owner / arm) for owner, arm in pairs) > 0


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_with_its_value(time_s: float) -> None:
    for owner_s, arm_s in ((time_s, 1.0), (1.0, time_s)):
        with pytest.raises(ValueError, match=str(time_s)):
            StartComparison().after(owner_s, arm_s)


def test_chance_adopts_no_more_than_one_arm_in_two_hundred_where_starts_come_in_two_modes() -> None:
    """The long run is tests/bench/start_simulation.py; before, four starts made a gain of one arm in 40."""
    chance, adopted, tunes = random.Random(7), 0, 3000
    for _ in range(tunes):
        comparison, verdict = StartComparison(), None
        while verdict is None:
            owner, arm = (0.1 * chance.getrandbits(1) + chance.gauss(0, 0.01) for _ in range(2))
            comparison = compared((owner, arm), to=comparison)
            verdict = comparison.verdict()
        adopted += verdict.outcome is Outcome.ADOPTED
    assert adopted <= 0.005 * tunes


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.1])
def test_chance_adopts_no_more_than_one_arm_in_two_hundred_however_much_starts_differ(spread: float) -> None:
    chance, adopted, tunes = random.Random(7), 0, 1200
    for _ in range(tunes):
        comparison, verdict = StartComparison(), None
        while verdict is None:
            comparison = compared((chance.gauss(0, spread), chance.gauss(0, spread)), to=comparison)
            verdict = comparison.verdict()
        adopted += verdict.outcome is Outcome.ADOPTED
    assert adopted <= 0.005 * tunes
