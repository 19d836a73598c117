"""Losses over epochs: a rise of several epochs in a row, or nothing better for long."""

from __future__ import annotations

from supervisor.core.flags import Severity
from supervisor.core.rules.loss_plateau_or_divergence import LossPlateauOrDivergence

from .long_stories import LongStory, trained
from .stories import NAN

RULE = LossPlateauOrDivergence(act=True, patience_epochs=5)


def epochs(*means: float) -> LongStory:
    """Epochs of ten steps with these mean losses, and the first step of one more."""
    timeline = trained(1)
    step = 10
    for mean in (*means, 1.0):
        timeline.steps(step + 1, step + 10, loss=mean, batches=10)
        step += 10
    return timeline


def test_three_epochs_in_a_row_far_above_the_best_act() -> None:
    flag = epochs(3.0, 2.0, 3.0, 3.1, 3.2).check(RULE)
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.CRITICAL, "divergence")
    assert flag.message == "mean losses of the last 3 epochs are 3, 3.1, 3.2, after 2 (limit 3)"


def test_it_reports_where_it_is_not_asked_to_act() -> None:
    flag = epochs(3.0, 2.0, 3.0, 3.1, 3.2).check(LossPlateauOrDivergence())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_two_epochs_are_one_short() -> None:
    assert epochs(3.0, 2.0, 2.1, 3.1, 3.2).check(RULE) is None


def test_one_better_epoch_interrupts() -> None:
    assert epochs(3.0, 2.0, 3.5, 2.9, 3.5).check(RULE) is None


def test_epochs_of_nan_fail_closed() -> None:
    flag = epochs(3.0, 2.0, NAN, NAN, NAN).check(RULE)
    assert flag is not None
    assert flag.subject == "divergence"


def test_no_better_validation_for_the_patience_is_reported_and_never_acts() -> None:
    timeline = epochs(*[2.0] * 8)
    for epoch, fitness in enumerate((0.2, 0.5, 0.4, 0.5, 0.5, 0.45, 0.5)):
        timeline.epoch_ends(epoch, fitness=fitness)
    flag = timeline.check(RULE)
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.WARNING, "plateau")
    assert flag.message == "no better fitness for 5 epochs: best 0.5, lately 0.5"


def test_one_epoch_short_of_the_patience_or_one_better_is_none() -> None:
    timeline = epochs(*[2.0] * 8)
    for epoch, fitness in enumerate((0.2, 0.5, 0.4, 0.5, 0.5, 0.45)):
        timeline.epoch_ends(epoch, fitness=fitness)
    assert timeline.check(RULE) is None
    assert timeline.epoch_ends(6, fitness=0.51).check(RULE) is None


def test_a_loss_that_still_falls_is_no_plateau() -> None:
    timeline = epochs(*[4.0 - 0.3 * number for number in range(8)])
    for epoch in range(7):
        timeline.epoch_ends(epoch, fitness=0.5)
    assert timeline.check(LossPlateauOrDivergence(patience_epochs=6)) is None


def test_without_epochs_nothing_is_reported() -> None:
    assert trained(500).check(RULE) is None


def fits(*fits_means: tuple[float, ...]) -> LongStory:
    """Trainings in one process after each other: epochs of ten steps with these means, counted from 0 in each."""
    timeline = trained(1)
    step = 10
    for means in (*fits_means, (1.0,)):
        for epoch, mean in enumerate(means):
            for _ in range(10):
                step += 1
                timeline.step(step, loss=mean, epoch=epoch).silence(0.05)
    return timeline


def test_the_next_model_of_a_process_is_not_measured_against_the_one_before() -> None:
    assert fits((3.0, 2.0, 1.0), (3.0, 2.9, 2.8, 2.7)).check(RULE) is None
    assert fits((3.0, 2.0, 1.0), (3.0, *[2.9 - 0.1 * number for number in range(8)])).check(RULE) is None


def test_the_next_model_of_a_process_is_measured_against_itself() -> None:
    flag = fits((3.0, 2.0, 1.0), (3.0, 2.0, 3.0, 3.1, 3.2)).check(RULE)
    assert flag is not None
    assert flag.message == "mean losses of the last 3 epochs are 3, 3.1, 3.2, after 2 (limit 3)"


def test_a_model_that_is_fitted_on_is_measured_against_its_best() -> None:
    flag = fits((3.0, 2.0), (2.1, 1.0), (1.1, 2.5), (2.6, 2.7)).check(RULE)
    assert flag is not None
    assert flag.message == "mean losses of the last 3 epochs are 2.5, 2.6, 2.7, after 1 (limit 1.5)"


def test_numbers_that_fail_with_the_next_model_fail_closed() -> None:
    flag = fits((3.0, 2.0, 1.0), (NAN, NAN, NAN)).check(RULE)
    assert flag is not None
    assert flag.subject == "divergence"


def test_epochs_that_are_counted_down_are_of_one_training() -> None:
    timeline = trained(1)
    for number, mean in enumerate((3.0, 2.0, 3.0, 3.1, 3.2, 1.0)):
        for step in range(10 * number, 10 * number + 10):
            timeline.step(11 + step, loss=mean, epoch=9 - number).silence(0.05)
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.subject == "divergence"
