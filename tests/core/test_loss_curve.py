"""The curve of a loss around a step, and the first losses after a resume held against it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from supervisor.core.checkpoints.loss_curve import Curve, Resumed, curve_of, cut_curve
from supervisor.core.flags import Severity
from supervisor.core.readings import StepRecord
from supervisor.core.rules.resumed_loss import ResumedLoss
from tests.examples import Sampling

from .stories import NAN, START, Story

OLD = Curve(losses=200, low=1.8, median=2.0, high=2.3, median_least=1.85, median_most=2.2)


def steps(losses: list[float], first: int = 1) -> list[StepRecord]:
    return [StepRecord(at=START.plus(n), step=first + n, loss=loss) for n, loss in enumerate(losses)]


def resumed(losses: list[float], curve: Curve | None = OLD) -> Story:
    story = Story()
    story.history.resumed = Resumed(step=500, curve=curve)
    for record in steps(losses, 501):
        story.history.steps.append(record)
    return story


def test_a_curve_has_the_quartiles_of_its_finite_losses() -> None:
    curve = curve_of([float(n) for n in range(101)] + [NAN, None])
    assert curve == Curve(losses=101, low=25.0, median=50.0, high=75.0, median_least=23.0, median_most=77.0)


def test_few_losses_are_no_curve() -> None:
    assert curve_of([1.0] * 19) is None
    assert curve_of([]) is None
    assert curve_of([NAN] * 100) is None


def test_the_curve_around_a_step_leaves_out_what_is_far_and_what_came_with_the_trouble() -> None:
    losses = steps([9.0] * 400 + [2.0] * 110 + [7.0] * 40 + [9.0] * 400)
    curve = cut_curve(losses, 500, fault_step=511)
    assert curve is not None
    assert replace(curve, latest=None) == Curve(
        losses=110, low=2.0, median=2.0, high=2.0, median_least=2.0, median_most=2.0
    )


def test_a_young_training_has_no_curve_to_leave() -> None:
    losses = steps([2.0] * 400)
    assert cut_curve(losses, 199) is None
    assert cut_curve(losses, 200) is not None


def test_losses_that_go_on_where_they_were_are_no_flag() -> None:
    assert resumed([2.1] * 40).check(ResumedLoss()) is None


def test_a_loss_on_the_move_goes_on_from_its_newest_and_not_from_its_middle() -> None:
    """As measured: a YOLO on small images, of which the loss rose from 0.05 to 7 within 60 steps."""
    curve = cut_curve(steps([0.05] * 462 + [6.5, 5.5, 7.5] * 16), 500, fault_step=511)
    assert curve is not None
    assert curve.median == 0.05
    assert curve.latest is not None
    assert (curve.latest.losses, curve.latest.median) == (30, 6.5)
    assert resumed([7.6, 7.0, 8.2] * 10, curve).check(ResumedLoss()) is None
    assert resumed([20.0] * 30, curve).check(ResumedLoss()) is not None
    assert resumed([0.05] * 30, curve).check(ResumedLoss()) is None, "where it was before is no ruin"


def test_losses_that_jump_after_a_resume_condemn_the_generation() -> None:
    story = resumed([5.0] * 30)
    flag = story.check(ResumedLoss())
    assert flag is not None
    assert (flag.severity, flag.since, flag.since_step) == (Severity.CRITICAL, story.history.launched_at, 500)
    assert "median 5, around step 500 it was 2 (1.8 to 2.3)" in flag.message


def test_one_loss_short_of_the_window_says_nothing() -> None:
    assert resumed([5.0] * 29).check(ResumedLoss()) is None


def test_a_warm_up_of_a_few_steps_is_forgiven() -> None:
    assert resumed([9.0] * 7 + [2.0] * 23).check(ResumedLoss()) is None


def test_long_after_the_resume_nothing_is_rejected() -> None:
    assert resumed([5.0] * 30 + [2.0] * 200).check(ResumedLoss()) is None


def test_losses_that_jump_are_found_by_a_daemon_that_was_held_up_past_the_last_look() -> None:
    """Found by stopping the daemon for a second: 120 steps of 10 ms each came at once, and it never looked."""
    story = resumed([5.0] * 300)
    story.history.first_step = 501
    assert story.check(ResumedLoss()) is not None
    story.history.steps.popleft()
    assert story.check(ResumedLoss()) is None, "what is left of them are not the first ones"


def test_without_an_old_curve_there_is_nothing_to_continue() -> None:
    assert resumed([5.0] * 40, None).check(ResumedLoss()) is None
    assert Story().check(ResumedLoss()) is None


def test_losses_that_are_not_known_say_nothing() -> None:
    story = resumed([5.0] * 40)
    blind = [replace(step, loss=None) for step in story.history.steps]
    story.history.steps.clear()
    story.history.steps.extend(blind)
    assert story.check(ResumedLoss()) is None


def test_reported_only_where_it_is_not_to_act() -> None:
    flag = resumed([5.0] * 30).check(ResumedLoss(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_losses_that_fall_off_the_curve_condemn_it_too() -> None:
    """As measured: a YOLO whose average was replaced by noise finds nothing, and its loss is a tenth of what it was."""
    old = Curve(losses=200, low=4.18, median=4.54, high=4.91, median_least=4.22, median_most=4.84)
    ruined = Curve(losses=30, low=0.24, median=0.48, high=0.97, median_least=0.1, median_most=2.2)
    assert old.left_by(ruined)
    good_night = Curve(losses=30, low=2.6, median=3.0, high=3.4, median_least=2.1, median_most=4.0)
    assert not old.left_by(good_night), "a third less is a good night"


def test_a_curve_of_negative_losses_can_be_left_and_need_not_be() -> None:
    old = Curve(losses=50, low=-5.2, median=-5.0, high=-4.9, median_least=-5.4, median_most=-4.8)
    assert old.left_by(Curve(losses=30, low=-1.2, median=-1.0, high=-0.9, median_least=-1.6, median_most=-0.7))
    assert not old.left_by(Curve(losses=30, low=-6.2, median=-6.0, high=-5.5, median_least=-6.8, median_most=-5.1))


def continues(chance: random.Random, spread: float, level: float, factor: float) -> bool:
    """Whether at none of the times that the rule looks it takes noise for another curve."""
    old = curve_of([level * chance.lognormvariate(0, spread) for _ in range(200)])
    losses = [factor * level * chance.lognormvariate(0, spread) for _ in range(120)]
    looks = [curve_of(losses[:count]) for count in (30, 60, 90, 120)]
    assert old is not None
    return not any(new is not None and old.left_by(new) for new in looks)


@pytest.mark.statistical
def test_noise_of_any_size_alone_condemns_nobody(sampling: Sampling) -> None:
    """Batches whose losses differ by a factor of e^spread, and lie up to 30 % higher or lower after the resume.

    Error rate: at most 1e-6 of the resumes, all four looks at each taken together.
    """

    def law(chance: random.Random) -> bool:
        return continues(chance, chance.uniform(0.05, 1.5), chance.uniform(0.3, 30), chance.uniform(1 / 1.3, 1.3))

    sampling.holds(law, error_rate=1e-6)


@pytest.mark.statistical
@pytest.mark.parametrize("spread", [0.2, 0.3, 0.375, 0.45, 0.6, 1.0, 1.5])
def test_noise_condemns_nobody_where_the_limits_are_closest(sampling: Sampling, spread: float) -> None:
    """All losses lie 30 % higher after the resume.

    Error rate: at most 1e-6 of the resumes, all four looks at each taken together.
    """
    sampling.holds(lambda chance: continues(chance, spread, 1.0, 1.3), error_rate=1e-6)


def test_a_run_of_high_losses_in_the_first_window_condemns_nobody() -> None:
    """Found by 600 times as many examples as usual: three quarters of 30 losses lay beyond three quarters of 200."""
    chance = random.Random(134)
    old = curve_of([chance.lognormvariate(0, 0.375) for _ in range(200)])
    new = curve_of([1.3 * chance.lognormvariate(0, 0.375) for _ in range(30)])
    assert old is not None
    assert new is not None
    assert new.low > old.high
    assert not old.left_by(new)


def test_what_the_first_window_cannot_distinguish_from_noise_a_later_one_can() -> None:
    chance = random.Random(3)
    old = curve_of([chance.lognormvariate(0, 0.6) for _ in range(200)])
    losses = [3.5 * chance.lognormvariate(0, 0.6) for _ in range(120)]
    story = resumed(losses[:30], old)
    assert story.check(ResumedLoss()) is None
    assert resumed(losses, old).check(ResumedLoss()) is not None


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.4])
def test_weights_that_begin_again_are_seen_through_the_noise(spread: float) -> None:
    chance = random.Random(1)
    old = curve_of([2.0 * chance.lognormvariate(0, spread) for _ in range(200)])
    new = curve_of([8.0 * chance.lognormvariate(0, spread) for _ in range(30)])
    assert old is not None
    assert new is not None
    assert old.left_by(new)
