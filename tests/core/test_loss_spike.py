"""Loss spike: one bad batch is told, a level that stays up can act, NaN never slips through."""

from __future__ import annotations

import math

from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import STEPS_KEPT
from supervisor.core.rules.loss_spike import LossSpike

from .long_stories import LongStory, trained
from .stories import NAN

ACTS = LossSpike(act=True)


def usual() -> LongStory:
    """Six hundred steps with losses between 0.9 and 1.1."""
    timeline = trained(1)
    for step in range(2, 600):
        timeline.steps(step, step, loss=1.0 + 0.1 * math.sin(step))
    return timeline


def of(timeline: LongStory, rule: LossSpike) -> RedFlag:
    flag = timeline.check(rule)
    assert flag is not None
    return flag


def test_one_batch_far_above_is_reported() -> None:
    flag = of(usual().steps(600, 600, loss=30.0).steps(601, 640), ACTS)
    assert flag.severity is Severity.WARNING
    assert flag.message.startswith("loss 30 at step 600, ")
    assert flag.diagnosis is not None


def test_a_spike_is_reported_as_long_as_its_steps_are_kept() -> None:
    timeline = usual().steps(600, 600, loss=30.0).steps(601, 640)
    spike = timeline.history.losses.ended
    assert spike is not None
    gone = spike.last.step + STEPS_KEPT
    assert of(timeline.steps(641, gone - 1), ACTS).message.startswith("loss 30 at step 600, ")
    assert timeline.steps(gone, gone).check(ACTS) is None


def test_a_loss_within_the_bounds_is_not_reported() -> None:
    assert usual().steps(600, 600, loss=2.5).check(ACTS) is None


def test_a_level_that_stays_up_acts_from_its_first_step_on() -> None:
    timeline = usual().steps(600, 800, loss=30.0)
    flag = of(timeline, ACTS)
    assert (flag.severity, flag.since_step, flag.can_save) == (Severity.CRITICAL, 600, False)
    assert of(timeline, LossSpike()).severity is Severity.WARNING


def test_one_step_short_of_staying_is_a_spike() -> None:
    flag = of(usual().steps(600, 799, loss=30.0), ACTS)
    assert (flag.severity, flag.subject) == (Severity.WARNING, "")


def test_a_return_to_the_usual_level_interrupts() -> None:
    timeline = usual().steps(600, 750, loss=30.0).steps(751, 790).steps(791, 900, loss=30.0)
    assert of(timeline, ACTS).severity is Severity.WARNING


def test_a_slow_rise_is_usual_and_no_spike() -> None:
    timeline = usual()
    for step in range(600, 3000):
        timeline.steps(step, step, loss=1.0 + 0.1 * math.sin(step) + (step - 600) / 300)
    assert timeline.check(ACTS) is None


def test_losses_that_stay_nan_fail_closed() -> None:
    flag = of(usual().steps(600, 800, loss=NAN), ACTS)
    assert flag.severity is Severity.CRITICAL
    assert "mostly not finite" in flag.message


def test_one_nan_is_left_to_the_rule_for_it() -> None:
    assert usual().steps(600, 600, loss=NAN).steps(601, 640).check(ACTS) is None


def test_a_training_without_losses_says_nothing() -> None:
    assert trained(1).steps(2, 2000, loss=None).check(ACTS) is None


def test_a_level_that_stays_for_thousands_of_steps_becomes_the_usual_one() -> None:
    timeline = usual().steps(600, 600 + 4200, loss=30.0).steps(4801, 5400, loss=30.0)
    assert timeline.history.losses.episode is None
    level = timeline.history.losses.level
    assert level is not None
    assert level.middle == 30.0


def next_model(*losses: float) -> LongStory:
    """Six hundred steps of two epochs, and steps of the first epoch of another model."""
    timeline = trained(1)
    for step in range(2, 600):
        timeline.step(step, loss=1.0 + 0.1 * math.sin(step), epoch=step // 300).silence(0.05)
    for step, loss in enumerate(losses, 600):
        timeline.step(step, loss=loss, epoch=0).silence(0.05)
    return timeline


def test_the_next_model_of_a_process_begins_with_a_level_of_its_own() -> None:
    assert next_model(*[30.0] * 300).check(ACTS) is None


def test_the_next_model_of_a_process_is_not_excused_numbers_that_fail() -> None:
    assert of(next_model(*[NAN] * 300), ACTS).severity is Severity.CRITICAL


def another_optimizer(timeline: LongStory, *losses: float) -> LongStory:
    """Steps of another optimizer, in a training whose epochs are not known."""
    last = timeline.history.last_step
    assert last is not None
    for number, loss in enumerate(losses):
        timeline.step(last.step + 1 + number, loss=loss, begins=number == 0).silence(0.05)
    return timeline


def test_the_next_model_of_a_process_without_epochs_begins_with_a_level_of_its_own() -> None:
    assert another_optimizer(usual(), *[30.0] * 300).check(ACTS) is None


def test_a_level_that_rose_before_another_optimizer_began_is_not_that_of_its_steps() -> None:
    risen = usual().steps(600, 700, loss=30.0)
    assert risen.history.losses.episode is not None
    assert another_optimizer(risen, *[25.0] * 200).history.losses.episode is None


def test_an_optimizer_that_goes_on_with_the_same_model_has_its_spikes_reported_later_on() -> None:
    timeline = another_optimizer(usual(), *[1.0 + 0.1 * math.sin(step) for step in range(300)], 30.0)
    assert of(timeline, ACTS).message.startswith("loss 30 at step 900, ")


def test_another_optimizer_is_not_excused_numbers_that_fail() -> None:
    assert of(another_optimizer(usual(), *[NAN] * 300), ACTS).severity is Severity.CRITICAL
