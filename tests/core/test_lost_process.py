"""Lost process: one of several that train is killed or crashes, and the others go on."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.rules.lost_process import LostProcess
from supervisor.core.rules.stall import Stall

from .long_stories import LongStory, trained

RULE = LostProcess()
SHIM, PARENT = 1, 40
FIRST, SECOND, THIRD = 4242, 52, 53


def three() -> LongStory:
    """A training of three processes, each with steps of its own, below one that only starts them."""
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST)
    for pid in (SECOND, THIRD):
        timeline.rank_says(ev.AgentEvent.TRAINS, pid=pid)
    return timeline.alive(5, SHIM, PARENT, FIRST, SECOND, THIRD).silence(1)


def ends(timeline: LongStory, pid: int, error: str = "") -> LongStory:
    return timeline.rank_says(ev.AgentEvent.TRAINS, pid=pid, ended=True, error=error)


def test_a_process_that_is_gone_without_a_word_is_a_warning_while_the_others_step() -> None:
    timeline = three().alive(9, SHIM, PARENT, FIRST, THIRD).steps(101, 101)
    assert timeline.check(RULE) is None
    flag = timeline.alive(1, SHIM, PARENT, FIRST, THIRD).check(RULE)
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.WARNING, "process 52")
    assert flag.message == "a process that trained (pid 52) was killed or crashed 10 s ago, the others go on"


def test_it_is_acted_on_where_the_owner_says_so() -> None:
    flag = three().steps(101, 101).alive(11, SHIM, PARENT, FIRST, THIRD).steps(102, 102).check(LostProcess(act=True))
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_the_exception_that_ended_it_is_named() -> None:
    timeline = ends(three(), SECOND, error="ValueError: a label of 12")
    flag = (
        timeline.alive(5, SHIM, PARENT, FIRST, THIRD).steps(101, 101).alive(6, SHIM, PARENT, FIRST, THIRD).check(RULE)
    )
    assert flag is not None
    assert "(pid 52) ended by ValueError: a label of 12 " in flag.message


def test_what_comes_to_its_end_or_is_ended_by_its_program_is_not_missed() -> None:
    timeline = ends(three(), SECOND)
    timeline.rank_says(ev.AgentEvent.TRAINS, pid=PARENT, of=THIRD, ended=True)
    assert timeline.alive(5, SHIM, PARENT, FIRST).steps(101, 101).alive(15, SHIM, PARENT, FIRST).check(RULE) is None


def test_where_no_other_steps_there_is_no_flag() -> None:
    assert three().alive(30, SHIM, PARENT, FIRST, THIRD).check(RULE) is None, "the others stand still: another rule's"
    assert three().alive(5, SHIM, PARENT).steps(101, 101).alive(15, SHIM, PARENT).check(RULE) is None, "all are gone"


def test_one_process_after_another_is_no_loss() -> None:
    """A program that trains fold by fold, and goes on after one that crashed."""
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).alive(5, SHIM, PARENT, FIRST)
    timeline.silence(1).alive(3, SHIM, PARENT).rank_says(ev.AgentEvent.CLAIMED, pid=SECOND)
    assert timeline.steps(101, 101).alive(30, SHIM, PARENT, SECOND).steps(102, 102).check(RULE) is None


def test_a_rank_that_its_launcher_starts_again_is_a_warning_once_it_steps() -> None:
    """By torchrun with --max-restarts: the only process that trained is lost, and the training begins again."""
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).alive(5, SHIM, PARENT, FIRST).silence(1)
    timeline.rank_says(ev.AgentEvent.TRAINS, pid=PARENT, of=FIRST, ended=True, error="SIGKILL", restarts=True)
    timeline.alive(10, SHIM, PARENT, SECOND)
    assert timeline.check(RULE) is None, "nothing trains"
    timeline.rank_says(ev.AgentEvent.CLAIMED, pid=SECOND).steps(1, 1)
    flag = timeline.alive(1, SHIM, PARENT, SECOND).check(RULE)
    assert flag is not None
    assert flag.message == (
        "a process that trained (pid 4242) ended by SIGKILL 11 s ago, its launcher started the training again"
    )


def test_a_rank_that_failed_and_is_not_started_again_is_no_loss() -> None:
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).alive(5, SHIM, PARENT, FIRST).silence(1)
    timeline.rank_says(ev.AgentEvent.TRAINS, pid=PARENT, of=FIRST, ended=True, error="status 1", restarts=True)
    assert timeline.alive(30, SHIM, PARENT).check(RULE) is None


def test_helpers_that_never_step_are_no_loss() -> None:
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST)
    timeline.rank_says(ev.AgentEvent.WORKERS, loader=1, pids=[SECOND, THIRD], training=True, iterable=False)
    timeline.alive(5, SHIM, FIRST, SECOND, THIRD).steps(101, 101)
    assert timeline.alive(30, SHIM, FIRST).steps(102, 102).check(RULE) is None


def test_the_number_of_a_process_that_ended_may_come_again() -> None:
    timeline = ends(three(), SECOND).rank_says(ev.AgentEvent.TRAINS, pid=SECOND)
    timeline.alive(2, SHIM, PARENT, FIRST, SECOND, THIRD).steps(101, 101)
    flag = timeline.silence(1).alive(5, SHIM, PARENT, FIRST, THIRD).steps(102, 102).alive(6, SHIM, PARENT, FIRST, THIRD)
    assert flag.check(RULE) is not None


def test_a_stall_says_that_what_trained_is_gone_where_its_program_stays() -> None:
    """As under a process manager (`supervisord`), which does not end with what it started."""
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).steps(101, 101)
    flag = timeline.alive(70, SHIM, PARENT).check(Stall())
    assert flag is not None
    assert flag.message.endswith("; the process that trained (pid 4242) is gone, and its program still runs")
    assert flag.diagnosis is not None
    assert flag.diagnosis.causes[0].startswith("it was killed, or crashed in native code")
    assert not any("a crash" in text for text in flag.diagnosis.ruled_out)


def test_a_stall_of_what_is_there_says_that_no_process_is_gone() -> None:
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).steps(101, 101)
    flag = timeline.alive(70, SHIM, PARENT, FIRST).check(Stall())
    assert flag is not None
    assert "gone" not in flag.message
    assert flag.diagnosis is not None
    assert any("a crash" in text for text in flag.diagnosis.ruled_out)
