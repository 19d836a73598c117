"""Stall: judged by the step counter, stage by stage."""

from __future__ import annotations

import pytest

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.stall import Stall

from .stories import story


def test_a_minute_without_a_step_is_a_stall() -> None:
    flag = story().training(steps=100).silence(60).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert not flag.can_save
    assert flag.message == "no step for 60 s in stage step (limit 60 s), last step 100"


def test_one_second_short_of_the_limit_is_no_stall() -> None:
    assert story().training().silence(59).check(Stall()) is None


def test_a_step_interrupts_the_silence() -> None:
    assert story().training(100).silence(59).steps(101, 101).silence(59).check(Stall()) is None


def test_output_does_not_interrupt_the_silence() -> None:
    told = story().training()
    for _ in range(12):
        told.silence(5).prints("still alive")
    assert told.check(Stall()) is not None


def test_a_busy_gpu_does_not_excuse_a_stall() -> None:
    assert story().training().gpu(60, busy=99.0).check(Stall()) is not None


@pytest.mark.parametrize(("stage", "limit_s"), [(Stage.VALIDATE, 3600.0), (Stage.CHECKPOINT, 900.0)])
def test_a_stage_has_its_own_limit(stage: Stage, limit_s: float) -> None:
    told = story().training().stage(stage).silence(limit_s - 1)
    assert told.check(Stall()) is None
    flag = told.silence(1).check(Stall())
    assert flag is not None
    assert stage.value in flag.message


def test_the_first_batch_after_a_validation_gets_the_whole_limit() -> None:
    told = story().training().stage(Stage.VALIDATE).silence(1000).stage(Stage.STEP).silence(59)
    assert told.check(Stall()) is None
    assert told.silence(1).check(Stall()) is not None


def test_it_spoils_no_checkpoint() -> None:
    flag = story().training().silence(60).check(Stall())
    assert flag is not None
    assert flag.since is None


def test_before_the_first_step_it_says_nothing() -> None:
    assert story().started().stage(Stage.STEP).silence(10_000).check(Stall()) is None


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.WARMUP])
def test_a_second_training_in_the_process_may_set_up_in_peace(stage: Stage) -> None:
    assert story().training().stage(Stage.ENDED).silence(5).stage(stage).silence(500).check(Stall()) is None


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.WARMUP])
def test_steps_outrank_a_stage_that_was_not_left(stage: Stage) -> None:
    told = story().started().stage(stage).steps(1, 10).silence(60)
    assert told.check(Stall()) is not None


def test_steps_of_an_unknown_stage_are_judged() -> None:
    assert story().started().steps(1, 10).silence(59).check(Stall()) is None
    flag = story().started().steps(1, 10).silence(60).check(Stall())
    assert flag is not None
    assert "stage unknown" in flag.message


def test_a_training_that_ended_does_not_stall() -> None:
    assert story().training().stage(Stage.ENDED).silence(9999).check(Stall()) is None
    assert story().training().says(ev.Word.TRAIN_END).silence(9999).check(Stall()) is None


def test_a_process_that_is_gone_does_not_stall() -> None:
    assert story().training().exits(1).silence(9999).check(Stall()) is None
    assert story().training().lost().silence(9999).check(Stall()) is None


def test_a_hook_that_failed_after_the_last_step_makes_it_a_warning() -> None:
    flag = story().training().says(ev.Word.HOOK_FAILED, where="torch_hook.step").silence(60).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_hook_that_failed_before_a_step_changes_nothing() -> None:
    told = story().training(10).says(ev.Word.HOOK_FAILED, where="ultralytics_hook.on_model_save").steps(11, 12)
    flag = told.silence(60).check(Stall())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_readopted_attempt_whose_steps_are_not_at_hand_can_stall() -> None:
    told = story().started()
    told.history.first_step_at = told.history.last_step_at = told.now
    told.history.claimed = True
    flag = told.silence(60).check(Stall())
    assert flag is not None


def test_act_off_tells_only() -> None:
    flag = story().training().silence(60).check(Stall(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING
