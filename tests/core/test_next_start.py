"""A program that starts its training again within an attempt: torchrun with --max-restarts, a loop in a shell."""

from __future__ import annotations

import pytest

from supervisor.core import events as ev
from supervisor.core.readings import Stage
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout

from .long_stories import LongStory, trained

SHIM, LAUNCHER, FIRST, SECOND = 1, 40, 4242, 52


def killed() -> LongStory:
    """The only process that makes steps is gone after its hundredth; its launcher is there."""
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).steps(101, 101)
    return timeline.alive(2, SHIM, LAUNCHER, FIRST).silence(1).alive(1, SHIM, LAUNCHER)


def started_again() -> LongStory:
    return killed().rank_says(ev.AgentEvent.ALIVE, pid=SECOND).alive(1, SHIM, LAUNCHER, SECOND)


def test_the_next_process_has_the_time_of_a_start_and_not_of_a_step() -> None:
    timeline = started_again().alive(300, SHIM, LAUNCHER, SECOND, every_s=5)
    assert timeline.check(Stall()) is None, "it imports, reads its data and compiles"
    timeline.stage(Stage.WARMUP).rank_says(ev.AgentEvent.CLAIMED, pid=SECOND).silence(300)
    assert timeline.check(Stall()) is None
    flag = timeline.stage(Stage.STEP).steps(1, 1).alive(60, SHIM, LAUNCHER, SECOND).check(Stall())
    assert flag is not None, "it makes steps, and none for a minute"


def test_a_start_that_does_not_end_is_slow() -> None:
    timeline = started_again().silence(1790)
    assert timeline.check(StartTimeout()) is None
    flag = timeline.silence(10).check(StartTimeout())
    assert flag is not None
    assert flag.message.startswith("no first step after 1801 s in stage setup (limit 1800 s)")


def test_it_is_known_as_well_where_the_reading_comes_after_the_report() -> None:
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).alive(2, SHIM, LAUNCHER, FIRST).silence(1)
    timeline.rank_says(ev.AgentEvent.ALIVE, pid=SECOND).silence(4).alive(60, SHIM, LAUNCHER, SECOND)
    assert timeline.check(Stall()) is None


def test_without_a_next_process_the_others_stand_still() -> None:
    assert killed().alive(60, SHIM, LAUNCHER).check(Stall()) is not None
    other_rank = killed().rank_says(ev.AgentEvent.ALIVE, rank=1, pid=SECOND)
    assert other_rank.alive(60, SHIM, LAUNCHER, SECOND).check(Stall()) is not None


def test_a_program_that_the_training_runs_is_no_next_process() -> None:
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).alive(2, SHIM, FIRST)
    timeline.rank_says(ev.AgentEvent.ALIVE, pid=SECOND).alive(60, SHIM, FIRST, SECOND)
    assert timeline.check(Stall()) is not None


def test_one_that_no_reading_shows_but_that_makes_a_step_keeps_its_stage() -> None:
    timeline = started_again().steps(102, 102)
    assert timeline.history.stage is Stage.STEP
    assert timeline.check(StartTimeout()) is None
    assert timeline.silence(60).check(Stall()) is not None


@pytest.mark.parametrize("complete", [False, True])
def test_a_training_that_has_ended_is_not_awaited_where_another_program_follows(*, complete: bool) -> None:
    """An evaluation that takes hours."""
    timeline = trained().rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).alive(2, SHIM, LAUNCHER, FIRST)
    timeline.stage(Stage.ENDED, stages_complete=complete).alive(1, SHIM, LAUNCHER).rank_says(
        ev.AgentEvent.ALIVE, pid=SECOND
    )
    timeline.alive(3600, SHIM, LAUNCHER, SECOND, every_s=30)
    assert timeline.check(Stall()) is None
    assert timeline.check(StartTimeout()) is None
