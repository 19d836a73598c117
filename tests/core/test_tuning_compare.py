"""What pairs of blocks prove: what gains a multiple by two, a few percent by several, and nothing by chance."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from supervisor.core.stats.student import get_upper_quantile
from supervisor.core.tuning.compare import (
    ASKED_STEPS,
    CONFIRMING_LOOKS,
    LOOKS,
    NOISIER,
    PAIRS_MAX,
    Comparison,
    Outcome,
    Verdict,
    count_asked,
    divide_s,
    typical_s,
)
from supervisor.core.tuning.knob import Facts, Kind, Knob, Phase
from supervisor.core.tuning.session import CONFIRMING, begin_session

ERROR = 0.005
"""How often chance may adopt an arm that is no gain."""


def compare(gain: float, deviation: float, chance: random.Random, drift: float = 0.0) -> Verdict:
    """Return the verdict on blocks with normal logarithms, each of which takes `drift` longer than the one before."""
    comparison, verdict, blocks = Comparison(), None, 0
    while verdict is None:
        off = [chance.gauss(drift * (blocks + block), deviation) for block in range(2)]
        owner, arm = off if len(comparison.pairs) % 2 == 0 else reversed(off)
        comparison = comparison.after(math.exp(owner), math.exp(arm) / (1 + gain))
        verdict, blocks = comparison.verdict(), blocks + 2
    return verdict


def count_adopted(gain: float, deviation: float, comparisons: int, drift: float = 0.0) -> float:
    """Return the share of comparisons in which the arm was adopted."""
    chance = random.Random(11)
    verdicts = [compare(gain, deviation, chance, drift) for _ in range(comparisons)]
    return sum(verdict.outcome is Outcome.ADOPTED for verdict in verdicts) / comparisons


def off_by(deviation: float, gain: float, *fours: float) -> Comparison:
    """Return a comparison whose blocks are off by as much in turn, and whose fours each have a level of their own."""
    comparison = Comparison()
    for level in fours:
        for off in (deviation, -deviation):
            comparison = comparison.after(math.exp(level + off), math.exp(level + off) / (1 + gain))
    return comparison


@pytest.mark.parametrize("deviation", [0.02, 0.05, 0.2, 1.0])
def test_chance_adopts_an_arm_without_gain_in_one_of_200_however_much_blocks_differ(deviation: float) -> None:
    assert count_adopted(0.0, deviation, 10_000) <= ERROR


def test_a_gain_of_11_percent_is_found_where_blocks_differ_by_half_as_much() -> None:
    assert count_adopted(0.11, 0.05, 300) >= 0.85


def test_a_pace_that_drifts_hides_no_gain() -> None:
    assert count_adopted(0.053, 0.01, 100, drift=0.005) >= 0.95


@pytest.mark.parametrize(("pairs", "degrees"), [(2, 2), (4, 5), (5, 6), (8, 11), (PAIRS_MAX, 44)])
def test_each_look_has_the_limit_of_students_t_for_its_share_of_the_error(pairs: int, degrees: int) -> None:
    offs = (0.01, -0.02, 0.03, 0.0) * PAIRS_MAX
    comparison = Comparison(tuple((math.exp(off), math.exp(-off / 2) / 1.2) for off in offs[:pairs]))
    gain = comparison.gain()
    radius = get_upper_quantile(LOOKS[pairs], degrees) * comparison.deviation * math.sqrt(2 / pairs)
    assert math.log1p(gain.low) == pytest.approx(math.log1p(gain.gain) - radius)


def test_between_two_looks_no_gain_is_proven_that_was_not_at_the_first_of_them() -> None:
    comparison = off_by(0.02, 0.07, *(0.0,) * 3)
    low = comparison.gain().low
    seventh = comparison.after(1.0, 0.9)
    assert seventh.gain().low == low, "looks follow after six and after eight pairs"
    assert seventh.after(1.0, 0.9).gain().low != low


def test_blocks_of_the_trials_before_make_the_deviation_known_better() -> None:
    first = off_by(0.04, 0.0, *(0.0,) * 3).next_trial()
    assert (first.degrees, math.sqrt(first.squares / first.degrees)) == pytest.approx((5, 0.04 * math.sqrt(8 / 5)))
    alone = off_by(0.04, 0.25, 0.0, 0.0)
    behind = replace(alone, squares=first.squares, degrees=first.degrees)
    assert behind.find_deviation() == pytest.approx((alone.deviation, 10))
    assert alone.verdict() is None
    verdict = behind.verdict()
    assert verdict is not None
    assert verdict.outcome is Outcome.ADOPTED


def test_what_blocks_of_other_workers_differ_by_is_no_measure_of_those_that_follow() -> None:
    knobs = [
        Knob(name=name, phase=Phase.DATA, kind=Kind.NUMERICS, values=lambda _: (True,), is_costly=name == "exchanged")
        for name in ("first", "exchanged", "last")
    ]
    session = begin_session(knobs, (), Facts())
    known: dict[str, int] = {}
    while session.trial is not None:
        known.setdefault(session.tried, session.trial.comparison.degrees)
        session = session.after_block(math.prod(0.7 for _ in session.wanted or ()))
    assert [known[f"{name} = true"] for name in ("first", "exchanged", "last")] == [0, 2, 0]
    assert known[CONFIRMING] == 0, "it exchanges workers"


def test_a_deviation_is_taken_no_smaller_than_the_trials_own_and_by_itself_where_blocks_differ_more_by_now() -> None:
    own = off_by(0.04, 0.0, 0.0, 0.0)
    quieter = replace(own, squares=10 * (1.01 * own.deviation / NOISIER) ** 2, degrees=10)
    assert quieter.find_deviation() == (own.deviation, 15)
    quiet = replace(own, squares=10 * (0.99 * own.deviation / NOISIER) ** 2, degrees=10)
    assert quiet.find_deviation() == (own.deviation, 5)
    noisy = replace(own, squares=10 * (2 * own.deviation) ** 2, degrees=10)
    assert noisy.find_deviation() == pytest.approx((own.deviation * math.sqrt(3), 15))


def test_an_arm_that_was_hardly_tried_shows_nothing_of_how_much_blocks_differ() -> None:
    known = off_by(0.04, 0.0, 0.0).next_trial()
    assert known.after(1.0, 5.0).next_trial() == known


def test_blocks_that_differ_twice_as_much_as_those_of_the_trial_before_are_no_gain_by_chance() -> None:
    chance, adopted, comparisons = random.Random(11), 0, 6000
    for _ in range(comparisons):
        before = Comparison(tuple((math.exp(chance.gauss(0, 0.05)), math.exp(chance.gauss(0, 0.05))) for _ in range(4)))
        comparison, verdict = before.next_trial(), None
        while verdict is None:
            comparison = comparison.after(math.exp(chance.gauss(0, 0.1)), math.exp(chance.gauss(0, 0.1)))
            verdict = comparison.verdict()
        adopted += verdict.outcome is Outcome.ADOPTED
    assert adopted <= ERROR * comparisons


def test_a_typical_step_is_the_mean_of_all_of_which_a_hiccup_counts_no_more_than_four_spreads() -> None:
    assert typical_s((1.0, 2.0)) == 1.5
    assert typical_s((0.9, 1.0, 1.1, 9.0)) == pytest.approx((3.0 + 1.05 + 4 * math.sqrt((0.15**2 + 0.05**2) / 2)) / 4)
    assert typical_s((1.0, 1.0, 1.0, 9.0)) == 1.0, "the quicker half shows how much steps differ"


def test_steps_that_are_as_much_longer_as_the_next_one_is_shorter_are_as_fast_as_their_sum() -> None:
    """As those are that their host holds back."""
    block = (0.03, 0.06, 0.05, 0.04, 0.06, 0.03)
    assert typical_s(block) == pytest.approx(0.045)
    assert typical_s((*block[:5], 0.05, 0.03, 0.05)) == pytest.approx(0.37 / 8)


def test_the_deviation_is_that_of_blocks_of_the_same_settings_within_four() -> None:
    assert off_by(0.01, 0.5, 0.0).deviation == pytest.approx(0.01 * math.sqrt(2)), "four squares, two degrees"
    assert off_by(0.01, 0.5, 0.0, 0.3, 0.1).deviation == pytest.approx(0.01 * math.sqrt(12 / 8))


def test_workers_that_gain_a_multiple_are_proven_by_two_pairs_unless_blocks_are_very_uneven() -> None:
    verdict = off_by(0.04, 3.0, 0.0).verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.pairs) == (Outcome.ADOPTED, 2)
    assert off_by(0.08, 3.0, 0.0).verdict() is None


def test_what_seems_to_gain_a_quarter_is_not_proven_by_two_pairs_that_differ_by_two_percent() -> None:
    assert off_by(0.02, 0.25, 0.0).verdict() is None


def test_two_steady_pairs_that_cannot_gain_enough_end_the_comparison() -> None:
    verdict = Comparison().after(1.02, 1.0).after(1.02, 1.0).verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.why, verdict.pairs) == (Outcome.REFUSED, "gains at most 2.9%", 2)
    assert Comparison().after(1.025, 1.0).after(1.025, 1.0).verdict() is None, "it may gain 3 %"
    assert Comparison().after(1.02, 1.0).verdict() is None


def test_an_arm_that_cannot_gain_is_slower_where_its_upper_bound_says_so() -> None:
    verdict = Comparison().after(0.97, 1.0).after(0.97, 1.0).verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.why) == (Outcome.REFUSED, "slower by 3.0%")


def test_a_comparison_begun_again_keeps_what_it_has_to_prove() -> None:
    knob = Knob(name="switch", phase=Phase.KERNELS, kind=Kind.NUMERICS, values=lambda _: (True,))
    session = begin_session((knob,), (), Facts())
    while session.tried != CONFIRMING:
        session = session.after_block(0.7 if session.wanted else 1.0)
    again = session.after_block(0.7).after_block(1.0).begun_again()
    assert again.trial is not None
    assert again.trial.comparison == replace(session.alike, looks=CONFIRMING_LOOKS)
    assert again.trial.comparison.degrees == 2, "of the two pairs of the arm"
    between = session.after_block(0.7).begun_again()
    assert between.trial == again.trial, "the first block of a pair is of no later one"


def test_what_was_proven_for_itself_is_confirmed_with_all_else_by_fewer_pairs() -> None:
    arm = off_by(0.02, 0.4, 0.0)
    assert arm.verdict() is None
    verdict = replace(arm, looks=CONFIRMING_LOOKS).verdict()
    assert verdict is not None
    assert verdict.outcome is Outcome.ADOPTED


def test_the_first_steps_after_a_switch_are_left_out_where_the_gpu_sets_the_pace() -> None:
    """Of a ResNet-50 in single precision on an H200: three steps were short, until its host was far enough ahead."""
    assert count_asked((0.059, 0.078, 0.136, 0.137, 0.136, 0.136)) == ASKED_STEPS
    assert count_asked((0.050, 0.041, 0.062, 0.045, 0.057, 0.039)) == 0, "its host sets the pace"
    assert count_asked((0.9, 1.2, 1.36, 1.37, 1.36)) == 0, "a long step has more launches than are asked for ahead"
    assert count_asked((0.1, 0.1, 0.1)) == 0, "one step shows no pace"


def test_parts_of_a_block_are_its_steps_in_order() -> None:
    assert divide_s((1.0, 1.0, 2.0, 2.0, 3.0), 2) == (1.0, 2.0)
    assert divide_s((1.0, 2.0, 3.0), 3) == (1.0, 2.0, 3.0)
    with pytest.raises(ValueError, match="2 steps make no 3 parts"):
        divide_s((1.0, 2.0), 3)
