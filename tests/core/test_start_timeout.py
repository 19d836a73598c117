"""Start timeout: no first step, and only where steps could be seen."""

from __future__ import annotations

import pytest

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.start_timeout import StartTimeout

from .stories import life, story


def test_a_setup_that_never_ends_is_flagged_after_its_limit_since_the_launch() -> None:
    timeline = story().started().silence(100).stage(Stage.SETUP).silence(1699)
    assert timeline.check(StartTimeout()) is None
    flag = timeline.silence(1).check(StartTimeout())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert "stage setup" in flag.message
    assert flag.since is None


@pytest.mark.parametrize("stage", [Stage.WARMUP, Stage.STEP])
def test_a_first_batch_that_never_comes_is_flagged_after_the_shorter_limit(stage: Stage) -> None:
    timeline = story().started().stage(Stage.SETUP).silence(1000).stage(stage).silence(599)
    assert timeline.check(StartTimeout()) is None
    assert timeline.silence(1).check(StartTimeout()) is not None


def test_a_busy_gpu_and_a_chatty_log_do_not_excuse_it() -> None:
    timeline = story().started().stage(Stage.WARMUP)
    for _ in range(60):
        timeline.gpu(10, busy=99.0).prints("MIOpen(HIP): Warning [SQLiteBase] Missing system database file")
    flag = timeline.check(StartTimeout())
    assert flag is not None
    assert "last output: MIOpen(HIP): Warning" in flag.message


def test_the_first_step_ends_its_watch() -> None:
    assert story().started().stage(Stage.WARMUP).silence(599).steps(1, 1).silence(9999).check(StartTimeout()) is None


def test_the_first_step_of_a_rank_ends_its_watch_on_a_node_without_rank_0() -> None:
    timeline = story().started().claims(2, 4242).silence(1799)
    assert timeline.check(StartTimeout()) is None
    assert timeline.silence(1).check(StartTimeout()) is not None
    assert timeline.rank_steps(2, 1, 1).silence(9999).check(StartTimeout()) is None


def test_a_step_of_another_rank_is_no_first_one_of_rank_0_on_this_node() -> None:
    timeline = story().started().claimed(4242, 4243).stage(Stage.WARMUP).rank_steps(1, 1, 1).silence(600)
    assert timeline.check(StartTimeout()) is not None


def test_a_training_of_which_a_node_without_rank_0_sees_all_steps_is_left_alone_for_hours() -> None:
    timeline = life().started().claims(2, 4242)
    timeline.read_decisions()
    for step in range(1, 1000):
        timeline.rank_steps(2, step, step, 10.0).gpu(busy=99.0).tree(cpu=90.0)
    assert timeline.decisions == []


def test_a_validation_before_the_first_step_has_the_limit_of_setup() -> None:
    timeline = story().started().stage(Stage.VALIDATE).silence(1799)
    assert timeline.check(StartTimeout()) is None
    assert timeline.silence(1).check(StartTimeout()) is not None


def test_a_second_training_in_the_process_is_watched_from_its_own_setup() -> None:
    timeline = story().training().stage(Stage.ENDED).silence(10_000).stage(Stage.SETUP).silence(1799)
    assert timeline.check(StartTimeout()) is None
    assert timeline.silence(1).check(StartTimeout()) is not None


def test_a_training_that_ended_need_not_step() -> None:
    assert story().started().stage(Stage.ENDED).silence(10_000).check(StartTimeout()) is None
    assert (
        story().started().stage(Stage.STEP).says(ev.AgentEvent.TRAIN_END).silence(10_000).check(StartTimeout()) is None
    )


def test_a_training_that_nobody_follows_is_never_stopped() -> None:
    timeline = story().started()
    for _ in range(200):
        timeline.silence(600).prints("epoch done")
        assert timeline.check(StartTimeout()) is None


@pytest.mark.parametrize("alive", [False, True])
def test_an_unfollowed_training_that_falls_silent_is_reported(*, alive: bool) -> None:
    timeline = story().started()
    if alive:
        timeline.says(ev.AgentEvent.ALIVE)
    timeline.silence(100).prints("reading data").silence(1799)
    assert timeline.check(StartTimeout()) is None
    flag = timeline.silence(1).check(StartTimeout())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_hook_that_failed_before_any_step_makes_it_unfollowed() -> None:
    timeline = story().started().stage(Stage.WARMUP).says(ev.AgentEvent.HOOK_FAILED, where="ultralytics_hook.x")
    assert timeline.silence(1000).prints("1/100").check(StartTimeout()) is None


def test_a_plan_without_a_stage_counts_from_the_launch() -> None:
    timeline = story().started().says(ev.AgentEvent.PLAN, epochs=3).silence(1800)
    assert timeline.check(StartTimeout()) is not None


def test_a_process_that_is_gone_is_late_for_nothing() -> None:
    assert story().started().stage(Stage.WARMUP).exits(1).silence(9999).check(StartTimeout()) is None


def test_act_off_reports_only() -> None:
    flag = story().started().stage(Stage.WARMUP).silence(600).check(StartTimeout(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING
