"""GPU idle: two signals, or nothing."""

from __future__ import annotations

import pytest

from supervisor.core import events as ev
from supervisor.core.attempt.silences import Silences
from supervisor.core.flags import Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.gpu_idle import GpuIdle

from .stories import GPU, OTHER_GPU, Story, story


def test_an_idle_gpu_and_no_step_for_the_hold_acts() -> None:
    flag = story().training().stage(Stage.STEP, stages_complete=True).gpu(30, busy=0.0).check(GpuIdle())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.since is None
    assert not flag.can_save


def test_while_it_sleeps_by_a_timer_or_waits_for_a_server_it_acts_after_twice_the_hold() -> None:
    timeline = story().training().stage(Stage.STEP, stages_complete=True).gpu(30, busy=0.0).tree(asking=(4242,))
    flag = timeline.check(GpuIdle())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    flag = timeline.gpu(30, busy=0.0).tree(timed=(4242,)).check(GpuIdle())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_where_it_was_stopped_for_silence_after_that_step_it_is_waited_for_longer() -> None:
    timeline = story().training().stage(Stage.STEP, stages_complete=True)
    timeline.history.silences = Silences(steps=(100,))
    flag = timeline.gpu(149, busy=0.0).check(GpuIdle())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    flag = timeline.gpu(1, busy=0.0).check(GpuIdle())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_one_second_short_of_the_hold_is_not_idle() -> None:
    assert story().training().gpu(29, busy=0.0).check(GpuIdle()) is None


def test_one_busy_reading_interrupts() -> None:
    assert (
        story().training().gpu(25, busy=0.0).silence(1).gpu(busy=2.0).silence(1).gpu(20, busy=1.0).check(GpuIdle())
        is None
    )


def test_a_starved_gpu_that_makes_steps_is_no_hang() -> None:
    timeline = story().training(10)
    for step in range(11, 60):
        timeline.gpu(5, busy=0.0).steps(step, step)
        assert timeline.check(GpuIdle()) is None


def test_idle_readings_from_before_the_last_step_do_not_count() -> None:
    timeline = story().training(10).gpu(29, busy=0.0).steps(11, 11).gpu(29, busy=0.0)
    assert timeline.check(GpuIdle()) is None
    assert timeline.steps(12, 12).silence(30).gpu(busy=0.0).check(GpuIdle()) is None


def test_a_silent_sensor_says_nothing() -> None:
    assert story().training().silence(59).check(GpuIdle()) is None
    assert story().training().gpu(59, busy=None).check(GpuIdle()) is None
    assert story().training().gpu(5, busy=0.0).silence(50).check(GpuIdle()) is None


def test_a_sensor_that_reads_nonsense_says_nothing() -> None:
    assert story().training().gpu(59, busy=float("nan")).check(GpuIdle()) is None


def test_a_suspended_gpu_says_nothing() -> None:
    assert story().training().gpu(59, busy=0.0, status="suspended").check(GpuIdle()) is None
    assert story().training().gpu(59, busy=0.0, status="active").check(GpuIdle()) is not None


def test_too_few_readings_say_nothing() -> None:
    assert story().training().gpu(30, busy=0.0, every_s=30).check(GpuIdle()) is None
    assert story().training().gpu(30, busy=0.0, every_s=15).check(GpuIdle()) is not None


@pytest.mark.parametrize("stage", [Stage.VALIDATE, Stage.CHECKPOINT, Stage.SETUP, Stage.WARMUP, Stage.ENDED])
def test_only_where_batches_are_due(stage: Stage) -> None:
    assert story().training().silence(1).stage(stage).gpu(100, busy=0.0).check(GpuIdle()) is None


def test_an_unknown_stage_says_nothing() -> None:
    assert story().started().steps(1, 10).gpu(100, busy=0.0).check(GpuIdle()) is None


def test_a_warmup_that_has_stepped_is_watched() -> None:
    assert story().started().stage(Stage.WARMUP).steps(1, 5).gpu(30, busy=0.0).check(GpuIdle()) is not None


def test_every_gpu_of_the_job_must_idle() -> None:
    both = (GPU, OTHER_GPU)
    timeline = story(both).training().gpu(30, busy=0.0)
    assert timeline.check(GpuIdle()) is None
    timeline = story(both).training()
    for _ in range(31):
        timeline.gpu(busy=0.0).gpu(busy=50.0, gpu=OTHER_GPU).silence(1)
    assert timeline.check(GpuIdle()) is None
    timeline = story(both).training()
    for _ in range(31):
        timeline.gpu(busy=0.0).gpu(busy=0.0, gpu=OTHER_GPU).silence(1)
    assert timeline.check(GpuIdle()) is not None


def test_another_jobs_busy_gpu_excuses_nothing() -> None:
    timeline = story().training()
    for _ in range(31):
        timeline.gpu(busy=0.0).gpu(busy=99.0, gpu=OTHER_GPU).silence(1)
    assert timeline.check(GpuIdle()) is not None


def test_a_training_on_the_cpu_leaves_the_gpu_idle() -> None:
    timeline = story().says(ev.AgentEvent.PLAN, device="cpu").training().gpu(59, busy=0.0)
    assert timeline.check(GpuIdle()) is None


def test_a_failed_hook_makes_the_missing_steps_say_nothing() -> None:
    timeline = story().training().says(ev.AgentEvent.HOOK_FAILED, where="torch_hook.step").gpu(59, busy=0.0)
    assert timeline.check(GpuIdle()) is None


def test_a_process_that_is_gone_idles_rightly() -> None:
    assert story().training().gpu(30, busy=0.0).exits(1).check(GpuIdle()) is None


def test_act_off_reports_only() -> None:
    flag = story().training().gpu(30, busy=0.0).check(GpuIdle(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_an_idle_gpu_that_waits_for_data_needs_a_third_witness() -> None:
    def waiting() -> Story:
        return story().training(100).stage(Stage.DATA_WAIT)

    assert waiting().gpu(60, busy=0.0).check(GpuIdle()) is None
    timeline = waiting()
    for _ in range(40):
        timeline.gpu(busy=0.0).tree(cpu=60.0).silence(1)
    assert timeline.check(GpuIdle()) is None, "somebody reads"
    timeline = waiting()
    for _ in range(40):
        timeline.gpu(busy=0.0).tree(cpu=0.4).silence(1)
    assert timeline.check(GpuIdle()) is not None


def test_where_not_every_stage_is_reported_it_acts_after_twice_the_time() -> None:
    timeline = story().training().gpu(59, busy=0.0)
    flag = timeline.check(GpuIdle())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    flag = timeline.gpu(1, busy=0.0).check(GpuIdle())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_how_near_it_is() -> None:
    (watched,) = GpuIdle().measure(story().training().gpu(15, busy=0.0).history)
    assert watched.share == 0.5
