"""Gradients that are no numbers: some are healthy under mixed precision, an endless run of them is not."""

from __future__ import annotations

from supervisor.core.flags import Severity
from supervisor.core.rules.non_finite_grad import NonFiniteGrad

from .stories import NAN, story

INF = float("inf")


def test_a_run_of_them_acts_from_its_first_on() -> None:
    flag = story().training(10).steps(11, 210, grad_norm=INF).check(NonFiniteGrad())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.since_step == 11
    assert flag.message.startswith("200 gradient norms in a row")


def test_one_step_short_of_the_run_is_reported() -> None:
    flag = story().training(10).steps(11, 209, grad_norm=NAN).check(NonFiniteGrad())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.since is None


def test_a_finite_one_interrupts_the_run() -> None:
    timeline = story().training(10).steps(11, 150, grad_norm=INF).steps(151, 151, grad_norm=2.0)
    flag = timeline.steps(152, 300, grad_norm=INF).check(NonFiniteGrad())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_those_that_a_scaler_skips_are_tolerated() -> None:
    assert story().training(10).steps(11, 30, grad_norm=INF).check(NonFiniteGrad()) is None
    assert story().training(10).steps(11, 31, grad_norm=INF).check(NonFiniteGrad()) is not None


def test_a_training_that_reports_no_norm_is_not_judged_and_says_so() -> None:
    timeline = story().training(500)
    assert timeline.check(NonFiniteGrad()) is None
    (watched,) = NonFiniteGrad().measure(timeline.history)
    assert watched.not_watched == "gradient norm not reported by this training"


def test_a_loss_that_is_none_belongs_to_the_other_rule() -> None:
    assert story().training(10).steps(11, 500, loss=NAN, grad_norm=NAN).check(NonFiniteGrad()) is None


def test_act_off_reports_only() -> None:
    flag = story().training(10).steps(11, 300, grad_norm=INF).check(NonFiniteGrad(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING
