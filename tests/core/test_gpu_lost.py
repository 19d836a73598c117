"""GPU lost: gone while others answer. A silence of all cards is the tool's."""

from __future__ import annotations

from supervisor.core.flags import Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.gpu_lost import GpuLost

from .long_stories import LongStory, long_story
from .stories import GPU, OTHER_GPU

RULE = GpuLost()


def both(seconds: int = 10, gpus_used: tuple[str, ...] = (GPU,)) -> LongStory:
    """Two cards answer for a while."""
    timeline = long_story(gpus_used)
    timeline.training(20).stage(Stage.STEP)
    for _ in range(seconds):
        timeline.card().card(gpu=OTHER_GPU).silence(1)
    return timeline


def test_gone_with_no_step_since_acts_and_what_was_saved_since_is_not_trusted() -> None:
    timeline = both()
    gone_at = timeline.now.plus(-1)
    flag = timeline.card(30, gpu=OTHER_GPU).check(RULE)
    assert flag is not None
    assert (flag.severity, flag.subject, flag.since) == (Severity.CRITICAL, GPU, gone_at)


def test_gone_while_steps_go_on_is_reported() -> None:
    timeline = both().card(14, gpu=OTHER_GPU)
    for step in range(21, 61):
        timeline.steps(step, step, 1.0).card(gpu=OTHER_GPU)
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message.endswith("; steps go on")


def test_a_little_too_early_it_is_reported_or_not_yet_reported() -> None:
    assert both().card(13, gpu=OTHER_GPU).check(RULE) is None
    flag = both().card(28, gpu=OTHER_GPU).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_one_reading_of_it_interrupts() -> None:
    assert both().card(14, gpu=OTHER_GPU).card().card(14, gpu=OTHER_GPU).check(RULE) is None


def test_a_tool_that_falls_silent_for_all_loses_no_gpu() -> None:
    assert both().silence(300).check(RULE) is None


def test_a_gpu_that_hardly_ever_answered_is_not_missed() -> None:
    assert both(4).card(60, gpu=OTHER_GPU).check(RULE) is None


def test_the_gpu_of_another_job_is_not_ours_and_one_that_may_be_is_reported() -> None:
    timeline = both(gpus_used=(OTHER_GPU,)).card(60, gpu=OTHER_GPU)
    assert timeline.check(RULE) is None
    flag = both(gpus_used=()).card(60, gpu=OTHER_GPU).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_act_off_reports_only() -> None:
    flag = both().card(60, gpu=OTHER_GPU).check(GpuLost(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING
