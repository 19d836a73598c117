"""Other trainings: of several programs that train in one job only one is followed, which is named."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core import events as ev
from supervisor.core.job import Phase
from supervisor.core.readings import ProcessReading
from supervisor.core.rules.advisory.other_trainings import OtherTrainings

from .long_stories import LongStory, long_story
from .stories import JOB, Life, Story, life

RULE = OtherTrainings()
SHELL, FIRST, SECOND, THIRD, LAUNCHER = 10, 4242, 4243, 4244, 11
TREE = ((SHELL, 1), (FIRST, SHELL), (SECOND, SHELL))


def read_tree(timeline: Story, *tree: tuple[int, int]) -> None:
    pids = tuple(pid for pid, _ in tree)
    reading = ProcessReading(at=timeline.now, processes=len(pids), pids=pids, parents=tree)
    timeline.put(ev.ProcessesRead(at=timeline.now, job=JOB, attempt=timeline.attempt, reading=reading))


def of_a_shell(*tree: tuple[int, int]) -> LongStory:
    """`a.py & b.py & wait`: both train, the first of them has the recorder."""
    timeline = long_story()
    for pid in (FIRST, SECOND):
        timeline.rank_says(ev.AgentEvent.ALIVE, pid=pid)
    timeline.rank_says(ev.AgentEvent.CLAIMED, pid=FIRST).rank_says(ev.AgentEvent.TRAINS, pid=SECOND)
    read_tree(timeline, *(tree or TREE))
    return timeline


def test_a_second_program_that_trains_is_named_with_the_one_that_is_followed() -> None:
    flag = of_a_shell().check(RULE)
    assert flag is not None
    assert flag.message == (
        "2 trainings run in this job and only that of process 4242 is followed: of processes 4243 neither steps nor "
        "losses are seen"
    )


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(((LAUNCHER, 1), (FIRST, LAUNCHER), (SECOND, LAUNCHER)), id="multiprocessing"),
        pytest.param(((LAUNCHER, 1), (12, LAUNCHER), (FIRST, 12), (SECOND, 12)), id="a fork server"),
        pytest.param(((FIRST, 1), (SECOND, FIRST)), id="a child"),
        pytest.param(((FIRST, 1), (12, FIRST), (SECOND, 12)), id="a child of a shell that it has started"),
    ],
)
def test_processes_that_one_interpreter_has_started_are_one_program(tree: tuple[tuple[int, int], ...]) -> None:
    timeline = of_a_shell(*tree).rank_says(ev.AgentEvent.ALIVE, pid=LAUNCHER)
    assert timeline.check(RULE) is None


def test_ranks_that_the_environment_numbers_are_followed_each() -> None:
    timeline = long_story()
    for rank, pid in enumerate((FIRST, SECOND)):
        timeline.rank_says(ev.AgentEvent.CLAIMED, rank=rank, pid=pid)
    read_tree(timeline, *TREE)
    assert timeline.check(RULE) is None


def test_one_that_has_ended_is_none_any_more_and_without_a_tree_nothing_is_known() -> None:
    timeline = of_a_shell()
    read_tree(timeline, *TREE[:2])
    assert timeline.check(RULE) is None
    read_tree(timeline, (FIRST, SHELL), (THIRD, SHELL))
    assert timeline.check(RULE) is None
    timeline.tree(1)
    assert timeline.check(RULE) is None


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("end", [None, {"ended": True}, {"ended": True, "error": "SIGKILL"}])
def test_a_job_that_ends_with_status_0_says_which_of_its_trainings_did_not_come_to_its_end(
    end: dict[str, Any] | None, code: int
) -> None:
    timeline = of_a_shell().rank_says(ev.AgentEvent.TRAINS, pid=FIRST, ended=True)
    if end is not None:
        timeline.rank_says(ev.AgentEvent.TRAINS, pid=SECOND, **end)
    read_tree(timeline, *TREE[:2])
    flag = timeline.exits(code).check(RULE)
    if code or end == {"ended": True}:
        assert flag is None
    else:
        assert flag is not None
        assert flag.message == (
            "the job ended with status 0, but of its trainings that of process 4243 did not come to its own end: "
            "killed or crashed"
        )


@pytest.mark.parametrize("ended", [False, True])
def test_of_one_that_was_followed_once_the_first_had_ended_the_end_is_known_too(*, ended: bool) -> None:
    timeline = of_a_shell().rank_says(ev.AgentEvent.TRAINS, pid=FIRST, ended=True)
    timeline.rank_says(ev.AgentEvent.CLAIMED, pid=SECOND)
    if ended:
        timeline.rank_says(ev.AgentEvent.TRAINS, pid=SECOND, ended=True)
    flag = timeline.exits(0).check(RULE)
    assert (flag is None) is ended


def finish(timeline: Life, *tree: tuple[int, int]) -> str:
    """Let the job end with status 0 after its first training ended; return why it is over."""
    for pid, facts in ((SECOND, {}), (FIRST, {"ended": True})) if tree else ():
        timeline.put(
            ev.AgentReported(
                at=timeline.now,
                job=JOB,
                attempt=timeline.attempt,
                agent_event=ev.AgentEvent.TRAINS,
                pid=pid,
                facts=dict(facts),
            )
        )
        read_tree(timeline, *tree)
    timeline.says(ev.AgentEvent.TRAIN_END).exits(0)
    timeline.read_decisions()
    assert timeline.job.phase is Phase.FINISHED
    return timeline.job.reason or ""


def test_a_finish_names_another_training_that_was_lost() -> None:
    reason = finish(life().started(SHELL).claims(0, FIRST).steps(1, 20), *TREE)
    assert "that of process 4243 did not come to its own end" in reason


def test_a_finish_of_one_training_says_no_more_than_that() -> None:
    assert finish(life().started(FIRST).claims(0, FIRST).steps(1, 20)) == "the training exited with status 0"
