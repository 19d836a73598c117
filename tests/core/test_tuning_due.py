"""A tune begins by itself in a training that has made steps for long enough, and in no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.job import Attempt, DesiredState, Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.tuning.due import TRIES, is_due, is_settled

START = Moment(1000.0, 1_800_000_000.0)
ATTEMPT = Attempt(number=1, launched_at=START, first_step_at=START.plus(100.0))
RUNNING = Job(name="one", since=START, phase=Phase.RUNNING, attempt=ATTEMPT)


def test_it_is_due_once_steps_were_made_for_long_enough() -> None:
    assert not is_due(RUNNING, START.plus(699.0), 600.0), "the launch does not count"
    assert is_due(RUNNING, START.plus(700.0), 600.0)


@pytest.mark.parametrize(
    "job",
    [
        replace(RUNNING, phase=Phase.STOPPING),
        replace(RUNNING, desired_state=DesiredState.STOP),
        replace(RUNNING, shutting_down=True),
        replace(RUNNING, attempt=replace(ATTEMPT, first_step_at=None)),
        replace(RUNNING, attempt=None),
    ],
    ids=["stopping", "stop asked", "shutting down", "no step", "no attempt"],
)
def test_one_that_ends_or_makes_no_steps_is_never_due(job: Job) -> None:
    assert not is_due(job, START.plus(1e6), 600.0)


def test_a_tune_that_came_to_its_end_is_settled_and_one_that_did_not_after_two_tries() -> None:
    assert is_settled(None, 1)
    assert [is_settled("the attempt ended", tries) for tries in range(TRIES + 1)] == [False, False, True]
