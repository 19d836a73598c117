"""The part of a tune that takes starts: what is started next, and what the starts prove."""

from __future__ import annotations

import math
import random

import pytest

from supervisor.core.tuning.guards import Block
from supervisor.core.tuning.knob import Kind
from supervisor.core.tuning.restarts import Measured, Restarts, StartArm, begin_restarts, start_of
from supervisor.core.tuning.start_order import TunedStart

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
    return trial, made.strip()


def test_each_arm_is_started_twice_in_the_order_a_b_b_a_and_a_gain_is_kept() -> None:
    trial, made = turns(begin_restarts((ARM,)), own=1.0, o=0.8)
    assert made == "- o o -"
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
    assert made == "- o o - o oo oo o"
    assert [row.value for row in trial.adopted] == ["on", "other"]
    assert start_of(trial.adopted_arms, None, ("train",)) == TunedStart(
        knobs=(("malloc", "on"), ("environment", "other")),
        env=(("MALLOC", "1"),),
        environment="other",
        command=("train",),
    )


def test_one_environment_that_gains_is_not_exchanged_for_another() -> None:
    trial, made = turns(begin_restarts((OTHER, THIRD)), own=1.0, o=0.8)
    assert made == "- o o -"
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


def test_what_is_not_tried_any_more_is_refused_with_the_reason() -> None:
    trial = begin_restarts((ARM, OTHER)).after_start(start(1.0)).without_more("stopped")
    assert trial.wanted is None
    assert [row.why for row in trial.refused] == ["stopped", "stopped"]


SAME = tuple(1 / step for step in range(1, 31))


def test_other_losses_of_the_same_steps_refuse_an_arm_however_fast_it_is() -> None:
    trial = begin_restarts((ARM,)).after_start(start(1.0, SAME))
    worse = tuple(1.2 * loss for loss in SAME)
    trial = trial.after_start(start(0.5, worse)).after_start(start(0.5, worse))
    assert trial.adopted == ()
    assert trial.refused[0].why == "step 101 from the same snapshot has the loss 1.2 under it, and 1 without"


def test_rounding_explains_other_losses_of_an_environment_and_not_of_the_same_arithmetic() -> None:
    rounded = tuple(1.001 * loss for loss in SAME)
    for arm, is_adopted in ((OTHER, True), (ARM, False)):
        trial = begin_restarts((arm,))
        for item in (start(1.0, SAME), start(0.5, rounded), start(0.5, rounded), start(1.0, SAME)):
            trial = trial.after_start(item) if trial.wanted is not None else trial
        assert bool(trial.adopted) is is_adopted, trial.refused


def test_where_each_start_has_other_losses_they_are_compared_as_a_whole_and_reported_so() -> None:
    chance = random.Random(1)
    trial = begin_restarts((ARM,))
    while trial.wanted is not None:
        losses = tuple(1 + chance.gauss(0, 0.1) for _ in range(60))
        trial = trial.after_start(start(0.5 if trial.is_arms_turn else 1.0, losses))
    assert trial.adopted[0].remark.endswith("only the course of the losses was compared")


def test_a_loss_that_is_no_number_refuses_an_arm_at_once() -> None:
    trial = begin_restarts((ARM,)).after_start(start(1.0, SAME)).after_start(start(0.5, (math.nan, *SAME)))
    assert "no number" in trial.refused[0].why


def share_adopted(gain: float, spread: float, runs: int) -> float:
    chance = random.Random(7)
    adopted = 0
    for _ in range(runs):
        trial = begin_restarts((ARM,))
        while trial.wanted is not None:
            faster = 1 + gain if trial.is_arms_turn else 1.0
            trial = trial.after_start(start(math.exp(chance.gauss(0, spread)) / faster))
        adopted += bool(trial.adopted)
    return adopted / runs


def test_two_starts_prove_a_tenth_where_starts_differ_by_a_hundredth_and_chance_proves_nothing() -> None:
    assert share_adopted(0.10, 0.01, 500) > 0.95
    assert share_adopted(0.10, 0.05, 500) < 0.6
    for spread in (0.01, 0.02, 0.05):
        assert share_adopted(0.0, spread, 1000) <= 0.05
