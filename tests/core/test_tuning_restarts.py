"""The part of a tune that takes starts: what is started next, and what the starts prove."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from supervisor.core.tuning.guards import Block
from supervisor.core.tuning.knob import Kind
from supervisor.core.tuning.restarts import Measured, Restarts, StartArm, begin_restarts, start_of
from supervisor.core.tuning.start_order import TunedStart
from tests.rigs.declared import check_declared

ARM = StartArm(knob="malloc", value="on", kind=Kind.SAME_ARITHMETIC, env=(("MALLOC", "1"),))
OTHER = StartArm(knob="environment", value="other", kind=Kind.NUMERICS, environment="other")
THIRD = StartArm(knob="environment", value="third", kind=Kind.NUMERICS, environment="third")


def start(median_s: float, losses: tuple[float, ...] = ()) -> Measured:
    return Measured(median_s=median_s, seen=Block(first_step=101, losses=losses))


def turns(trial: Restarts, **seconds: float) -> tuple[Restarts, str]:
    """Make all starts, whose time is that of the arms they are with, and return them by their first letters."""
    made = ""
    while (wanted := trial.wanted) is not None:
        names = "".join(arm.value[0] for arm in wanted) or "-"
        made += f"{names} "
        trial = trial.after_start(start(seconds[names.replace("-", "own")]))
        check_declared(trial)
    return trial, made.strip()


def test_an_arm_that_gains_is_started_four_times_in_the_order_a_b_b_a_and_kept() -> None:
    trial, made = turns(begin_restarts((ARM,)), own=1.0, o=0.8)
    assert made == "- o o - - o o -"
    (adopted,) = trial.adopted
    assert (adopted.knob, adopted.value) == ("malloc", "on")
    assert adopted.gain.gain == pytest.approx(0.25)
    assert trial.before_s == pytest.approx(1.0)
    assert trial.after_s == pytest.approx(0.8)


def test_an_arm_without_gain_is_refused_and_its_last_start_is_the_next_arms_first() -> None:
    trial, made = turns(begin_restarts((ARM, OTHER)), own=1.0, o=1.0)
    assert made == "- o o - o o -", "seven starts and not eight"
    assert trial.adopted == ()
    assert [row.knob for row in trial.refused] == ["malloc", "environment"]
    assert all("gains at most" in row.why or "not settled" in row.why for row in trial.refused), trial.refused


def test_a_further_arm_is_tried_on_top_of_what_was_adopted() -> None:
    trial, made = turns(begin_restarts((ARM, OTHER)), own=1.0, o=0.8, oo=0.6)
    assert made == "- o o - - o o - - o oo oo o o oo", "five starts with the first arm, of which the last is a second's"
    assert [row.value for row in trial.adopted] == ["on", "other"]
    assert start_of(trial.adopted_arms, None, ("train",)) == TunedStart(
        knobs=(("malloc", "on"), ("environment", "other")),
        env=(("MALLOC", "1"),),
        environment="other",
        command=("train",),
    )


def test_a_start_with_what_was_adopted_is_the_next_arms_first() -> None:
    trial, made = begin_restarts((ARM, OTHER)), ""
    while (wanted := trial.wanted) is not None:
        made += "".join(arm.value[0] for arm in wanted) or "-"
        made += " "
        trial = trial.after_start(start({"": 1.0, "o": 0.8, "oo": 0.6}["".join(arm.value[0] for arm in wanted)]))
    assert [row.value for row in trial.adopted] == ["on", "other"]
    assert trial.adopted[1].gain.gain == pytest.approx(1 / 3)


def test_one_environment_that_gains_is_not_exchanged_for_another() -> None:
    trial, made = turns(begin_restarts((OTHER, THIRD)), own=1.0, o=0.8)
    assert made == "- o o - - o o - - o"
    assert [row.value for row in trial.adopted] == ["other"]


def test_an_arm_that_is_far_slower_is_started_once() -> None:
    trial, made = turns(begin_restarts((ARM,)), own=1.0, o=2.0)
    assert made == "- o"
    assert trial.refused[0].why == "slower by 50% in its first start"


def test_an_arm_that_cannot_be_started_is_refused_with_the_reason_and_the_next_begins() -> None:
    trial = begin_restarts((ARM, OTHER)).after_start(start(1.0)).after_refusal("its process exited with 1")
    assert trial.refused[0].why == "its process exited with 1"
    assert trial.wanted == (), "the next arm begins with a start as before"
    assert trial.arm == OTHER


def test_an_arm_that_fails_at_its_second_start_leaves_the_next_one_no_start_to_go_on_from() -> None:
    trial = begin_restarts((ARM, OTHER)).after_start(start(1.0)).after_start(start(0.9))
    trial = trial.after_refusal("its process exited with 1")
    assert (trial.arm, trial.starts, trial.wanted) == (OTHER, 0, ()), "the start before was one with the arm"


def test_an_arm_that_is_refused_before_any_start_leaves_the_others_all_of_theirs() -> None:
    trial = begin_restarts((ARM, OTHER)).after_refusal("its environment does not load")
    assert (trial.arm, trial.starts, trial.wanted) == (OTHER, 0, ())


def test_what_is_not_tried_any_more_is_refused_with_the_reason() -> None:
    trial = begin_restarts((ARM, OTHER)).after_start(start(1.0)).without_more("stopped")
    assert trial.wanted is None
    assert [(row.knob, row.value, row.why) for row in trial.refused] == [
        ("malloc", "on", "stopped"),
        ("environment", "other", "stopped"),
    ]


def test_a_pair_that_harm_ends_leaves_the_next_arm_no_start_to_go_on_from() -> None:
    """The owner's start is two starts old by then: a drift between would pass for a gain."""
    trial = begin_restarts((ARM, OTHER)).after_start(start(1.0, SAME))
    for _ in range(2):
        trial = trial.after_start(start(0.9, tuple(2 * loss for loss in SAME)))
    assert trial.refused[0].why.startswith("step 101 from the same snapshot")
    assert (trial.arm, trial.starts, trial.wanted) == (OTHER, 0, ())


def test_losses_that_are_too_few_to_compare_refuse_an_arm_after_the_last_pair() -> None:
    trial, made = begin_restarts((ARM,)), 0
    while trial.wanted is not None:
        trial = trial.after_start(start(0.5 if trial.is_arms_turn else 1.0, (1.0,) if made < 2 else ()))
        made += 1
    assert (made, trial.adopted) == (12, ())
    assert trial.refused[0].why == "not settled after 6 pairs: its losses are too few"


def test_an_arm_without_losses_is_adopted_with_that_as_its_remark() -> None:
    trial, _ = turns(begin_restarts((ARM,)), own=1.0, o=0.8)
    assert trial.adopted[0].remark == "its losses are not reported: they were not compared"


@pytest.mark.parametrize(("median_s", "is_refused"), [(1.3 * 0.999, False), (1.3 * 1.001, True)])
def test_from_thirty_percent_more_time_on_one_start_is_enough(median_s: float, is_refused: bool) -> None:
    trial = begin_restarts((ARM,)).after_start(start(1.0)).after_start(start(median_s))
    assert [row.why for row in trial.refused] == (["slower by 23% in its first start"] if is_refused else [])


@pytest.mark.parametrize(("steps", "is_compared"), [(8, True), (7, False)])
def test_eight_common_steps_with_the_same_losses_show_that_starts_can_be_compared(
    steps: int, is_compared: bool
) -> None:
    trial, seen = begin_restarts((ARM,)), SAME[:steps]
    for median_s, losses in ((1.0, SAME), (0.5, seen), (0.5, seen), (1.0, tuple(2 * loss for loss in SAME))):
        trial = trial.after_start(start(median_s, losses)) if trial.wanted is not None else trial
    assert bool(trial.refused) is is_compared


def test_no_more_than_the_first_eight_steps_are_compared() -> None:
    later = (*SAME[:8], *(1.001 * loss for loss in SAME[8:]))
    trial = begin_restarts((ARM,))
    while (wanted := trial.wanted) is not None:
        trial = trial.after_start(start(0.5, later) if wanted else start(1.0, SAME))
    assert [row.remark for row in trial.adopted] == [""]


def test_starts_from_other_snapshots_have_no_steps_in_common() -> None:
    trial = begin_restarts((ARM,))
    for place, median_s in enumerate((1.0, 0.5, 0.5, 1.0)):
        seen = Block(first_step=101 + 10 * place, losses=SAME)
        trial = trial.after_start(Measured(median_s=median_s, seen=seen)) if trial.wanted is not None else trial
    assert trial.refused == ()


def test_what_a_start_is_with_is_added_to_what_it_was_with_and_replaces_its_environment() -> None:
    base = TunedStart(knobs=(("hipblaslt", "1"),), env=(("A", "1"), ("MALLOC", "0")), environment="new", command=("x",))
    assert start_of((), base, ("train",)) == base
    assert start_of((ARM,), base, ("train",)) == TunedStart(
        knobs=(("hipblaslt", "1"), ("malloc", "on")),
        env=(("A", "1"), ("MALLOC", "1")),
        environment="new",
        command=("train",),
    )
    started = start_of((ARM, OTHER), base, ("train",))
    assert started is not None
    assert started.environment == "other"


def test_a_tune_of_starts_that_is_over_takes_no_start_and_no_refusal() -> None:
    over = begin_restarts(())
    assert over.wanted is None
    assert over.after_refusal("its process exited with 1") is over
    with pytest.raises(ValueError, match=r"^no start was wanted$"):
        over.after_start(start(1.0))


SAME = tuple(1 / step for step in range(1, 31))


def test_other_losses_of_the_same_steps_refuse_an_arm_however_fast_it_is() -> None:
    trial = begin_restarts((ARM,)).after_start(start(1.0, SAME))
    worse = tuple(1.2 * loss for loss in SAME)
    trial = trial.after_start(start(0.5, worse)).after_start(start(0.5, worse))
    assert trial.adopted == ()
    assert trial.refused[0].why == "step 101 from the same snapshot has the loss 1.2 under it, and 1 without"


def test_losses_that_have_come_to_zero_are_the_same_in_each_start() -> None:
    trial, zero = begin_restarts((ARM,)), (0.0,) * 30
    while trial.wanted is not None:
        trial = trial.after_start(start(0.5 if trial.is_arms_turn else 1.0, zero))
    assert [row.remark for row in trial.adopted] == [""], "step by step, and not by their course"


def test_rounding_explains_other_losses_of_an_environment_and_not_of_the_same_arithmetic() -> None:
    rounded = tuple(1.001 * loss for loss in SAME)
    for arm, is_adopted in ((OTHER, True), (ARM, False)):
        trial = begin_restarts((arm,))
        while trial.wanted is not None:
            trial = trial.after_start(start(0.5, rounded) if trial.is_arms_turn else start(1.0, SAME))
        assert bool(trial.adopted) is is_adopted, trial.refused


def test_where_each_start_has_other_losses_they_are_compared_as_a_whole_and_reported_so() -> None:
    chance = random.Random(1)
    trial = begin_restarts((ARM,))
    while trial.wanted is not None:
        losses = tuple(1 + chance.gauss(0, 0.1) for _ in range(60))
        trial = trial.after_start(start(0.5 if trial.is_arms_turn else 1.0, losses))
    assert trial.adopted[0].remark == (
        "the same steps have other losses in each start: only the course of the losses was compared"
    )


def test_a_loss_that_is_no_number_refuses_an_arm_at_once() -> None:
    trial = begin_restarts((ARM,)).after_start(start(1.0, SAME)).after_start(start(0.5, (math.nan, *SAME)))
    assert "no number" in trial.refused[0].why


def simulate(gains: tuple[float, ...], spread: float, runs: int) -> tuple[float, float]:
    """Return how many arms a tune adopts, and how many starts it takes, on the average."""
    chance = random.Random(7)
    gain_of = {f"arm{number}": gain for number, gain in enumerate(gains)}
    arms = [StartArm(knob=name, value="on", kind=Kind.SAME_ARITHMETIC) for name in gain_of]
    adopted = starts = 0
    for _ in range(runs):
        trial = begin_restarts(arms)
        while (wanted := trial.wanted) is not None:
            faster = math.prod(1 + gain_of[arm.knob] for arm in wanted)
            trial = trial.after_start(start(math.exp(chance.gauss(0, spread)) / faster))
            starts += 1
        adopted += len(trial.adopted)
    return adopted / runs, starts / runs


def test_a_tenth_is_found_by_four_starts_of_each_where_starts_differ_by_a_hundredth() -> None:
    found, starts = simulate((0.1,), 0.01, 200)
    assert found > 0.99
    assert starts < 8.1


def test_a_further_arm_takes_fewer_starts_since_those_with_what_was_adopted_are_known() -> None:
    found, starts = simulate((0.1, 0.1, 0.1), 0.01, 100)
    assert found > 0.99 * 3
    assert starts < 10 + 2 * 6.5


def test_chance_adopts_no_arm_of_three_in_more_than_one_tune_in_two_hundred() -> None:
    assert simulate((0.0, 0.0, 0.0), 0.05, 300)[0] <= 0.005


def test_where_starts_hide_a_gain_the_tune_gives_its_starts_back_and_names_how_many_would_do() -> None:
    trial = begin_restarts((ARM,))
    for seconds in (1.05, 0.97, 0.85, 0.95):
        trial = trial.after_start(start(seconds))
    assert trial.wanted is None
    assert trial.refused[0].why == (
        "not settled: faster by 10.0% after 2 pairs of starts; starts differ by 8.3%; "
        "about 32 starts more would be needed to prove that"
    )


# --- a larger batch ---------------------------------------------------------------------------------------------------

LARGER = StartArm(
    knob="batch",
    value="x2",
    kind=Kind.OPTIMISATION,
    factors=(("loader_batch_factor", 2.0), ("lr_factor", 2.0)),
    samples_factor=2.0,
)


def falling(samples: float, *, first_step: int = 101, per_sample: float = 1e-4, count: int = 40) -> Block:
    """The losses of a training that learns, by the samples it has seen, alike in each start."""
    chance = random.Random(int(samples))
    losses = tuple(2.0 - per_sample * samples * place + chance.gauss(0, 0.02) for place in range(count))
    return Block(first_step=first_step, samples_per_step=samples, losses=losses)


def with_larger(arm: Block, owner: Block | None = None) -> Restarts:
    """Make all starts, in which the arm takes two thirds of the time for a sample."""
    trial, before = begin_restarts((LARGER,)), falling(8) if owner is None else owner
    while trial.wanted is not None:
        is_arms = trial.is_arms_turn
        trial = trial.after_start(Measured(median_s=2 / 3 if is_arms else 1.0, seen=arm if is_arms else before))
        check_declared(trial)
    return trial


def test_a_larger_batch_is_compared_by_the_samples_that_its_losses_have_seen() -> None:
    (adopted,) = with_larger(falling(16)).adopted
    assert adopted.gain.gain == pytest.approx(0.5)
    assert adopted.remark == "another training: the course of its losses by samples was compared"


def test_a_larger_batch_that_learns_as_much_of_a_step_learns_less_of_a_sample() -> None:
    trial = with_larger(falling(16, per_sample=2e-4), falling(8, per_sample=4e-4))
    assert trial.adopted == ()
    assert trial.refused[0].why.startswith("losses are higher by"), trial.refused


@pytest.mark.parametrize(
    ("arm", "why"),
    [
        (falling(8), "a step has 8 samples under it, and 8 without"),
        (replace(falling(16), samples_per_step=None), "the samples of its steps are not known"),
        (falling(16, first_step=51), "it goes on with step 51, and with step 101 without"),
        (replace(falling(16), losses=(math.nan,) * 40), "a loss is no number under it"),
        (falling(16, per_sample=-1e-3), "losses are higher by"),
    ],
)
def test_a_larger_batch_that_is_none_or_trains_otherwise_is_refused(arm: Block, why: str) -> None:
    trial = with_larger(arm)
    assert trial.adopted == ()
    assert trial.refused[0].why.startswith(why), trial.refused


def test_a_batch_that_was_doubled_before_is_doubled_once_more() -> None:
    once = start_of((LARGER,), None, ("train",))
    assert once is not None
    assert once.factors == LARGER.factors
    twice = start_of((LARGER,), once, ("train",))
    assert twice is not None
    assert dict(twice.factors) == {"loader_batch_factor": 4.0, "lr_factor": 4.0}
