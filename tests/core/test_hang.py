"""Hang: a process waits in the kernel and no step is made; either alone is no hang."""

from __future__ import annotations

from supervisor.core.flags import RedFlag, Severity
from supervisor.core.readings import KernelWait, Stage
from supervisor.core.rules.hang import Hang

from .stories import Story, story


def stepping() -> Story:
    return story().training(100).stage(Stage.STEP, stages_complete=True)


def test_a_process_that_waits_in_the_kernel_without_a_step_is_a_hang() -> None:
    flag = stepping().tree(30, stuck=(4242,)).check(Hang())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.message == (
        "process 4242 (python) waits in the kernel (state D) without running once for 30 s, "
        "and no step for 30 s in stage step"
    )
    assert flag.diagnosis is not None
    assert "driver" in flag.diagnosis.causes[0]


def test_one_second_short_of_it_is_none() -> None:
    assert stepping().tree(29, stuck=(4242,)).check(Hang()) is None


def test_a_reading_without_it_interrupts_the_wait() -> None:
    assert stepping().tree(20, stuck=(4242,)).tree(0, stuck=()).tree(20, stuck=(4242,)).check(Hang()) is None


def test_a_step_interrupts_it() -> None:
    assert stepping().tree(20, stuck=(4242,)).steps(101, 101).tree(20, stuck=(4242,)).check(Hang()) is None


def test_a_process_that_runs_between_its_waits_hears_signals() -> None:
    timeline = stepping().tree(300, stuck=(4242,), runs=True)
    assert timeline.check(Hang()) is None
    assert timeline.tree(29, stuck=(4242,)).check(Hang()) is None
    assert timeline.tree(1, stuck=(4242,)).check(Hang()) is not None


def test_where_nobody_counts_whether_it_ran_it_is_reported() -> None:
    flag = stepping().tree(60, stuck=(4242,), runs=None).check(Hang())
    assert flag is not None
    assert (flag.severity, "without running" in flag.message) == (Severity.WARNING, False)
    flag = stepping().tree(29, stuck=(4242,)).tree(2, stuck=(4242,), runs=None).check(Hang())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_who_waits_for_a_file_system_is_reported_and_has_the_limits_of_a_stall() -> None:
    def waits_in(channel: str) -> RedFlag:
        timeline = stepping()
        wait = KernelWait(pid=4242, name="python", thread=4242, channel=channel, switches=9)
        flag = timeline.tree(30, stuck=(4242,), waits=(wait,)).check(Hang())
        assert flag is not None
        return flag

    flag = waits_in("rpc_wait_bit_killable")
    assert flag.severity is Severity.WARNING
    assert flag.diagnosis is not None
    assert flag.diagnosis.causes == ("it waits for a file system, which ends when its disk or server answers",)
    assert not any("reset" in text for text in flag.diagnosis.advice)
    assert waits_in("dma_fence_default_wait").severity is Severity.CRITICAL


def test_different_processes_that_take_turns_read_a_disk() -> None:
    timeline = stepping()
    for number in range(40):
        timeline.tree(stuck=(5000 + number % 4,)).silence(1)
    assert timeline.check(Hang()) is None


def test_a_silent_sensor_is_no_hang() -> None:
    timeline = stepping().silence(300)
    assert timeline.check(Hang()) is None
    (watched,) = Hang().measure(timeline.history)
    assert watched.not_watched == "no reading of its processes"
    assert stepping().tree(20, stuck=(4242,)).silence(90).tree(20, stuck=(4242,)).check(Hang()) is None


def test_where_it_may_read_or_write_for_long_it_is_reported() -> None:
    for stage in (Stage.DATA_WAIT, Stage.CHECKPOINT, Stage.VALIDATE):
        flag = stepping().stage(stage, stages_complete=True).tree(60, stuck=(4242,)).check(Hang())
        assert flag is not None
        assert flag.severity is Severity.WARNING


def test_where_not_every_stage_is_reported_it_is_reported() -> None:
    flag = story().training(100).tree(60, stuck=(4242,)).check(Hang())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_act_off_reports_only() -> None:
    flag = stepping().tree(30, stuck=(4242,)).check(Hang(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_stopped_process_is_none() -> None:
    assert stepping().tree(60, stopped=(4242,)).check(Hang()) is None
