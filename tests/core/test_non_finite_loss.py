"""Non-finite loss: isolated ones are told, systematic ones act."""

from __future__ import annotations

import pytest

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.readings import StepRecord
from supervisor.core.rules.non_finite_loss import NonFiniteLoss

from .stories import JOB, NAN, story

INF = float("inf")


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_a_third_non_finite_loss_in_the_window_acts(loss: float) -> None:
    timeline = story().training(10).steps(11, 11, loss=loss)
    first_at = timeline.now
    flag = (
        timeline.steps(12, 500)
        .steps(501, 501, loss=loss)
        .steps(502, 1009)
        .steps(1010, 1010, loss=loss)
        .check(NonFiniteLoss())
    )
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.since == first_at
    assert flag.since_step == 11
    assert not flag.can_save


def test_the_window_is_counted_in_steps_and_one_too_many_is_outside() -> None:
    timeline = story().training(10).steps(11, 11, loss=NAN).steps(12, 1009).steps(1010, 1011, loss=NAN)
    flag = timeline.check(NonFiniteLoss())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_two_are_tolerated_and_each_is_reported_once() -> None:
    timeline = story().training(10).steps(11, 11, loss=NAN)
    first = timeline.check(NonFiniteLoss())
    timeline.steps(12, 50)
    again = timeline.check(NonFiniteLoss())
    timeline.steps(51, 51, loss=NAN)
    second = timeline.check(NonFiniteLoss())
    assert first is not None
    assert again is not None
    assert second is not None
    assert first.severity is Severity.WARNING
    assert first.key == again.key != second.key
    assert first.subject == "step 11"
    assert first.since is None


def test_an_isolated_one_is_forgotten_after_a_window_of_good_steps() -> None:
    timeline = story().training(10).steps(11, 11, loss=NAN).steps(12, 1010)
    assert timeline.check(NonFiniteLoss()) is not None
    assert timeline.steps(1011, 1011).check(NonFiniteLoss()) is None


def test_a_finite_loss_however_large_is_no_business_of_this_rule() -> None:
    assert story().training(10).steps(11, 100, loss=1e38).check(NonFiniteLoss()) is None


def test_an_unknown_loss_is_neither_good_nor_bad() -> None:
    assert story().training(10).steps(11, 100, loss=None).check(NonFiniteLoss()) is None


def test_nothing_tolerated_means_that_the_first_acts() -> None:
    flag = story().training(10).steps(11, 11, loss=NAN).check(NonFiniteLoss(tolerated=0))
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_step_that_was_skipped_is_reported_as_such() -> None:
    timeline = story().training(10)
    record = StepRecord(at=timeline.now.plus(0.05), step=11, loss=NAN, skipped=True)
    timeline.put(ev.StepsMade(at=record.at, job=JOB, attempt=1, records=(record,)))
    flag = timeline.check(NonFiniteLoss())
    assert flag is not None
    assert flag.message.endswith("; its step was skipped")
    assert flag.diagnosis is not None
    assert "a gradient scaler skipped every one" in flag.diagnosis.ruled_out[0]


def test_one_in_a_hundred_is_a_system_and_stops_at_the_third() -> None:
    """The owner's 73 in 7,550 batches."""
    timeline = story().training(10)
    for number, step in enumerate((32, 135, 238), 1):
        timeline.steps(step, step, loss=NAN).steps(step + 1, step + 20)
        flag = timeline.check(NonFiniteLoss())
        assert flag is not None
        assert flag.severity is (Severity.CRITICAL if number == 3 else Severity.WARNING)
        assert flag.since_step == (32 if number == 3 else None)


def test_how_near_it_is() -> None:
    timeline = story().training(10).steps(11, 11, loss=NAN)
    system, first = NonFiniteLoss().measure(timeline.history)
    assert (first.now, first.limit, first.reached) == (1, 1, True)
    assert (system.now, system.limit, system.reached) == (1, 3, False)
    (silent,) = NonFiniteLoss().measure(story().training(10).steps(11, 11, loss=None).history)
    assert silent.not_watched is not None


def test_gradients_do_not_add_to_the_losses() -> None:
    timeline = story().training(10).steps(11, 15, grad_norm=NAN).steps(16, 17, loss=NAN)
    flag = timeline.check(NonFiniteLoss())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_another_training_in_the_process_counts_its_own_steps() -> None:
    timeline = story().training(10).steps(2011, 2012, loss=NAN).steps(1, 1, loss=NAN)
    flag = timeline.check(NonFiniteLoss())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_it_still_speaks_when_the_process_is_gone() -> None:
    flag = story().training(10).steps(11, 15, loss=NAN).exits(1).check(NonFiniteLoss())
    assert flag is not None
    assert flag.since_step == 11


def test_without_steps_it_says_nothing() -> None:
    assert story().started().silence(100).check(NonFiniteLoss()) is None


def test_act_off_reports_only() -> None:
    flag = story().training(10).steps(11, 15, loss=NAN).check(NonFiniteLoss(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING
