"""Idle job: what stands still without making steps that anybody sees."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.idle_job import IdleJob

from .stories import story


def test_a_program_without_steps_of_which_nothing_runs_is_warned_of_after_30_s() -> None:
    timeline = story(gpus_used=()).tree(29, cpu=0.0, switches=0.0)
    assert timeline.check(IdleJob()) is None
    flag = timeline.tree(2, cpu=0.0, switches=0.0).check(IdleJob())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message == "all processes have been idle for 31 s: no CPU, no output, no GPU (no step was seen yet)"


def test_it_acts_where_the_setting_says_so() -> None:
    timeline = story(gpus_used=()).tree(299, cpu=0.0, switches=0.0)
    rule = IdleJob(act=True)
    flag = timeline.check(rule)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    flag = timeline.tree(1, cpu=0.0, switches=0.0).check(rule)
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_output_processor_threads_and_gpus_are_each_work() -> None:
    timeline = story(gpus_used=()).tree(29, cpu=0.0, switches=0.0).prints("epoch 1")
    assert timeline.tree(29, cpu=0.0, switches=0.0).check(IdleJob()) is None
    assert story(gpus_used=()).tree(60, cpu=20.0, switches=0.0).check(IdleJob()) is None
    assert story(gpus_used=()).tree(60, cpu=0.0, switches=50.0).check(IdleJob()) is None
    assert story(gpus_used=()).tree(60, cpu=0.0).check(IdleJob()) is None
    working = story(gpus_used=())
    for _ in range(60):
        working.tree(cpu=0.0, switches=0.0).gpu(busy=80.0).silence(1)
    assert working.check(IdleJob()) is None


def test_a_stopped_job_is_named_so_in_whatever_stage_it_is() -> None:
    flag = (
        story(gpus_used=())
        .training(5)
        .stage(Stage.VALIDATE)
        .tree(31, cpu=0.0, switches=0.0, stopped=(7,))
        .check(IdleJob())
    )
    assert flag is not None
    assert "stopped (state T) for 31 s" in flag.message


def test_a_job_that_was_continued_and_still_does_nothing_is_idle_and_not_stopped() -> None:
    timeline = story(gpus_used=()).tree(30, cpu=0.0, switches=0.0, stopped=(7,)).silence(1)
    flag = timeline.tree(cpu=0.0, switches=0.0).check(IdleJob())
    assert flag is not None
    assert flag.message.startswith("all processes have been idle for 31 s")


def test_gpus_that_are_not_read_rule_nothing_out_unless_the_training_computes_on_the_cpu() -> None:
    timeline = story().tree(60, cpu=0.0, switches=0.0)
    assert timeline.check(IdleJob()) is None, "the GPU may be at work"
    assert timeline.says(ev.AgentEvent.PLAN, device="cpu").check(IdleJob()) is not None
