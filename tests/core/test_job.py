"""The table of phases: it holds exactly what it names."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.job import ALIVE, ENDED, MOVES, Attempt, ImpossibleMove, Job, Move, Phase
from supervisor.core.readings import ExitStatus
from supervisor.core.remedies.last_resorts import ResortTaken

from .stories import JOB, START

MISSING = sorted(set(product(Phase, Move)) - set(MOVES), key=str)


@pytest.mark.parametrize(("phase", "move"), MISSING, ids=lambda item: item.value)
def test_a_move_that_the_table_lacks_raises(phase: Phase, move: Move) -> None:
    with pytest.raises(ImpossibleMove, match=f"{move.value} is no move from {phase.value}"):
        Job(name=JOB, since=START, phase=phase).moved(move, START)


@pytest.mark.parametrize(("phase", "move"), sorted(MOVES, key=str), ids=lambda item: item.value)
def test_a_move_of_the_table_is_made(phase: Phase, move: Move) -> None:
    moved = Job(name=JOB, since=START, phase=phase).moved(move, START.plus(5), "why")
    assert (moved.phase, moved.since, moved.reason) == (MOVES[phase, move], START.plus(5), "why")


def test_every_phase_can_be_reached_from_the_first() -> None:
    reached, todo = {Phase.PENDING}, [Phase.PENDING]
    while todo:
        phase = todo.pop()
        for (origin, _), target in MOVES.items():
            if origin is phase and target not in reached:
                reached.add(target)
                todo.append(target)
    assert reached == set(Phase)


def test_no_phase_is_a_trap() -> None:
    assert {phase for phase, _ in MOVES} == set(Phase)


def test_only_a_phase_without_a_process_is_left_by_a_launch() -> None:
    assert {phase for phase, move in MOVES if move is Move.LAUNCH} == {Phase.PENDING, Phase.BACKOFF}
    assert not ALIVE & ENDED


def test_an_attempt_is_over_when_nothing_of_it_runs() -> None:
    attempt = Attempt(number=1, launched_at=START)
    assert not attempt.over
    assert attempt.ending == "has not ended"
    assert Attempt(number=1, launched_at=START, launch_error="no shim").over
    assert Attempt(number=1, launched_at=START, host_lost="reboot").over
    gone = Attempt(number=1, launched_at=START, exit=ExitStatus(at=START, signal=9))
    assert gone.over
    assert gone.ending == "was killed by SIGKILL"


def test_the_first_attempt_has_number_1() -> None:
    assert Job(name=JOB, since=START).number == 0


def test_only_an_attempt_that_resumed_from_something_may_go_back_to_an_older_one() -> None:
    first = Job(name=JOB, since=START, attempt=Attempt(number=1, launched_at=START))
    saved = Checkpoint(path="a.pt", fingerprint=Fingerprint(size_bytes=1, modified_ns=1, inode=1))
    resumed = replace(first, attempt=Attempt(number=2, launched_at=START, resume_from=saved))
    before = replace(first, attempt=None)
    assert [job.ended("crash", None).resumed for job in (before, first, resumed)] == [False, False, True]


def test_what_decides_about_a_remedy_has_the_last_resorts_that_were_taken() -> None:
    taken = tuple(ResortTaken(kind=kind, command=("x",), at=START, attempt=1) for kind in ("reset_gpu", "reboot"))
    job = Job(name=JOB, since=START, resorts=taken, adjustable=("batch_factor",))
    ended = job.ended("gpu_lost", 7)
    assert (ended.cause, ended.step, ended.resorts_taken) == ("gpu_lost", 7, ("reset_gpu", "reboot"))
    assert (ended.adjustable, ended.torch, ended.patched, ended.finding) == (("batch_factor",), False, False, None)
