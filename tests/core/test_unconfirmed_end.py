"""A job that finishes without a step since its fault, or with a loss that is not finite, is no plain success."""

from __future__ import annotations

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.job import Phase
from supervisor.core.remedies.trials import Outcome
from supervisor.core.rules.non_finite_loss import NonFiniteLoss

from .stories import NAN, Life, life

SEE = (
    "what it saved last may be spoilt, see `supervisorctl checkpoints night`; "
    "`supervisorctl start night` goes on from before it"
)


def spoilt() -> Life:
    """Relaunched after three losses that were not finite, of steps 51 to 53."""
    timeline = life().training(50).saves("clean.pt", 50).silence(1).steps(51, 53, loss=NAN).saves("spoilt.pt", 53)
    return timeline.exits(signal=15).looks().started()


def finish(timeline: Life) -> de.Finish:
    decision = timeline.last
    assert isinstance(decision, de.Finish)
    assert timeline.job.phase is Phase.FINISHED
    assert timeline.job.reason == decision.reason
    return decision


def test_an_end_without_a_step_since_the_loss_was_no_number_names_it_and_the_remedy_has_not_helped() -> None:
    timeline = spoilt().exits(0)
    end = finish(timeline)
    assert end.unconfirmed
    assert end.reason == (
        f"the training exited with status 0; it made no step since attempt 1 ended at step 53 (non_finite_loss): {SEE}"
    )
    assert timeline.job.course.trials[-1].outcome is Outcome.UNCLEAR


def test_ends_before_the_first_step_in_between_change_nothing_of_that() -> None:
    timeline = spoilt().exits(1).looks().silence(60).started().exits(signal=9).looks().silence(60).started()
    finished = timeline.exits(0)
    assert finish(finished).unconfirmed
    assert "it made no step since attempt 1 ended at step 53 (non_finite_loss)" in finish(finished).reason
    launch = finished.asks(ev.Ask.START).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "clean.pt"


def test_a_step_in_between_is_one() -> None:
    timeline = (
        spoilt().exits(1).looks().silence(60).started().steps(51, 60).exits(1).looks().silence(60).started().exits(0)
    )
    assert "it made no step since attempt 3 ended at step 60 (crash)" in finish(timeline).reason
    assert not finish(timeline).unconfirmed


def test_a_start_after_such_an_end_goes_on_from_before_the_fault_and_a_fresh_one_from_the_beginning() -> None:
    timeline = spoilt().exits(0)
    fresh = spoilt().exits(0).asks(ev.Ask.START, fresh=True)
    launch = timeline.asks(ev.Ask.START).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "clean.pt"
    assert isinstance(fresh.last, de.Launch)
    assert fresh.last.resume_from is None


def test_a_start_after_a_last_loss_that_is_no_number_goes_on_from_before_it() -> None:
    timeline = life().training(50).saves("clean.pt", 50).silence(1).steps(51, 51, loss=NAN).saves("spoilt.pt", 51)
    launch = timeline.exits(0).asks(ev.Ask.START).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "clean.pt"


def test_a_start_after_a_plain_success_is_from_the_beginning() -> None:
    launch = spoilt().steps(51, 60).saves("last.pt", 60).exits(0).asks(ev.Ask.START).last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None


def test_steps_with_a_loss_that_is_finite_are_a_plain_success() -> None:
    timeline = spoilt().steps(51, 60).exits(0)
    end = finish(timeline)
    assert (end.reason, end.unconfirmed) == ("the training exited with status 0", False)
    assert timeline.job.course.trials[-1].outcome is Outcome.HELPED


def test_an_end_without_a_step_since_a_crash_says_so_and_no_more() -> None:
    """It may have died after its last save, of which nothing is left to be done."""
    end = finish(life().training(50).saves("last.pt", 50).exits(1).looks().started().exits(0))
    assert end.reason == "the training exited with status 0; it made no step since attempt 1 ended at step 50 (crash)"
    assert not end.unconfirmed


def test_steps_that_are_not_reported_are_not_missed() -> None:
    end = finish(life().started().exits(1).looks().started().exits(0))
    assert (end.reason, end.unconfirmed) == ("the training exited with status 0", False)


def test_after_a_fault_of_the_gpu_it_is_as_after_a_loss_that_is_no_number() -> None:
    timeline = life().training(50).saves("a.pt", 50).silence(2).kernel(FaultClass.GPU_HANG).exits(signal=9)
    end = finish(timeline.looks().started().exits(0))
    assert end.unconfirmed
    assert "it made no step since attempt 1 ended at step 50 (crash): " in end.reason


def test_a_last_loss_that_is_no_number_is_named_though_so_few_are_tolerated() -> None:
    end = finish(life().training(50).silence(1).steps(51, 51, loss=NAN).exits(0))
    assert end.reason == f"the training exited with status 0; its last loss, nan at step 51, is not finite: {SEE}"
    assert end.unconfirmed


@pytest.mark.parametrize(
    ("rule", "is_named"),
    [(NonFiniteLoss(act=False), True), (NonFiniteLoss(act="shadow"), False), (NonFiniteLoss(enabled=False), False)],
)
def test_losses_of_a_rule_that_its_owner_has_turned_off_are_no_fault(rule: NonFiniteLoss, is_named: bool) -> None:
    end = finish(life(rules=(rule,)).training(50).silence(1).steps(51, 60, loss=NAN).exits(0))
    assert end.unconfirmed is is_named
