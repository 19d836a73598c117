"""Busy without progress: full load is health with steps, and nothing alone."""

from __future__ import annotations

import pytest

from supervisor.core.flags import Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.busy_without_progress import BusyWithoutProgress

from .stories import GPU, OTHER_GPU, Story, story

RULE = BusyWithoutProgress()


def stepping() -> Story:
    return story().training(100).stage(Stage.STEP, stages_complete=True)


def test_full_load_and_no_step_acts() -> None:
    flag = stepping().gpu(45, busy=99.0).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.message == "every GPU at least 90 % busy for 45 s, and no step for 45 s"
    assert flag.fault is None


def test_one_second_short_of_it_is_nothing() -> None:
    assert stepping().gpu(44, busy=99.0).check(RULE) is None


def test_a_step_interrupts_it() -> None:
    assert stepping().gpu(40, busy=99.0).steps(101, 101).gpu(40, busy=99.0).check(RULE) is None


def test_a_reading_of_less_interrupts_it() -> None:
    assert stepping().gpu(40, busy=99.0).gpu(busy=30.0).gpu(40, busy=99.0).check(RULE) is None


@pytest.mark.parametrize("busy", [None, float("nan")])
def test_a_silent_sensor_is_not_busy(busy: float | None) -> None:
    timeline = stepping().gpu(100, busy=busy)
    assert timeline.check(RULE) is None
    assert stepping().silence(100).check(RULE) is None
    (watched,) = RULE.measure(stepping().silence(100).history)
    assert watched.not_watched == "no reading of its GPUs"


@pytest.mark.parametrize("stage", [Stage.WARMUP, Stage.SETUP])
def test_before_the_first_step_it_may_be_a_search_and_is_reported(stage: Stage) -> None:
    timeline = story().started().stage(stage).gpu(119, busy=100.0)
    assert timeline.check(RULE) is None
    flag = timeline.gpu(1, busy=100.0).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert "search for kernels" in flag.message


def test_at_a_new_shape_too() -> None:
    flag = stepping().stage(Stage.COMPILE, stages_complete=True).gpu(120, busy=100.0).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_gpu_that_miopen_is_known_to_fail_on_is_the_second_witness() -> None:
    flag = story().started().stage(Stage.WARMUP).gpu(120, busy=100.0, gfx="gfx1010:xnack-").check(RULE)
    assert flag is not None
    assert (flag.severity, flag.fault) == (Severity.CRITICAL, "miopen")
    timeline = story().started().stage(Stage.WARMUP).gpu(120, busy=100.0, gfx="gfx1010")
    timeline.history.patched = True
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING


@pytest.mark.parametrize("stage", [Stage.VALIDATE, Stage.CHECKPOINT, Stage.DATA_WAIT])
def test_other_stages_may_keep_a_gpu_busy(stage: Stage) -> None:
    assert stepping().stage(stage, stages_complete=True).gpu(500, busy=99.0).check(RULE) is None


def test_of_two_gpus_both_must_be_busy() -> None:
    timeline = story((GPU, OTHER_GPU)).training(100).stage(Stage.STEP, stages_complete=True)
    for _ in range(50):
        timeline.gpu(busy=99.0).gpu(busy=2.0, gpu=OTHER_GPU).silence(1)
    assert timeline.check(RULE) is None


def test_where_nobody_knows_which_of_two_gpus_it_uses_nothing_is_reported() -> None:
    timeline = story(()).training(100).stage(Stage.STEP, stages_complete=True)
    for _ in range(50):
        timeline.gpu(busy=99.0).gpu(busy=99.0, gpu=OTHER_GPU).silence(1)
    assert timeline.check(RULE) is None


def test_a_training_whose_steps_are_not_seen_is_not_judged() -> None:
    assert story().started().gpu(1000, busy=99.0).check(RULE) is None
