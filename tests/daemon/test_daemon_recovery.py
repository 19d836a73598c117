"""What an earlier daemon left is taken up: what runs goes on, what was decided is carried out once more."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from clocks_by_hand import START, HandClock

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.history import History
from supervisor.core.job import Attempt, Job, Phase, StopOrder
from supervisor.core.readings import ExitStatus
from supervisor.daemon.attempt_reader import AttemptReader, FollowedAttempt
from supervisor.daemon.executor import ThreadExecutor
from supervisor.daemon.job_state import JobState
from supervisor.daemon.jobs.recovery import LAUNCH_UNDER_WAY_S, Recovery
from supervisor.store.store import Cursors


@dataclass
class FakeHands:
    """Finds the shim, or does not; keeps what it was to do."""

    state: Path
    found: bool = True
    adopted: list[FollowedAttempt] = field(default_factory=list)
    acts: list[de.Decision] = field(default_factory=list)
    left_alone: list[tuple[str, int]] = field(default_factory=list)

    def folder(self, job: str, attempt: int) -> Path:
        return self.state / "jobs" / job / str(attempt)

    def adopt(self, job: str, attempt: int, followed: FollowedAttempt) -> bool:
        self.adopted.append(followed)
        return self.found

    def leave_alone(self, job: str, attempt: int) -> None:
        self.left_alone.append((job, attempt))

    def act(self, decision: de.Decision, job: Job, history: History | None) -> None:
        self.acts.append(decision)


@dataclass
class FakeWatch:
    """Hears which attempts are gone."""

    lost: list[tuple[str, int]] = field(default_factory=list)

    def gone(self, job: str, attempt: int) -> None:
        self.lost.append((job, attempt))


class World:
    """One job as the record has it, long after its launch."""

    def __init__(self, state: Path) -> None:
        self.hands = FakeHands(state)
        self.watch = FakeWatch()
        self.runs = True
        self.reported: list[ev.Event] = []
        self.clock = HandClock()
        self.clock.sleep(LAUNCH_UNDER_WAY_S + 100)

    def take_up(self, job: Job, cursors: Cursors) -> Job:
        job_state = JobState(job=job, rules=())
        hands, watch = cast("ThreadExecutor", self.hands), cast("AttemptReader", self.watch)
        recovery = Recovery(self.clock, hands, watch, lambda job, folder: self.runs, self.reported.append)
        recovery.take_up(job_state, cursors, output_limit_bytes=1000)
        return job_state.job


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def job(phase: Phase, **facts: object) -> Job:
    attempt = Attempt(number=4, launched_at=START, shim_pid=77, last_step=10, last_step_at=START)
    return Job(**{"name": "one", "since": START, "phase": phase, "attempt": attempt, **facts})  # type: ignore[arg-type]  # facts are the test's


def cursors(last_step: int | None = None) -> Cursors:
    return Cursors(recorder={0: 12}, output_bytes=34, agent_log_bytes=56, last_step=last_step)


def test_a_running_attempt_is_read_on_from_where_the_record_ends(world: World) -> None:
    world.take_up(job(Phase.RUNNING), cursors())
    followed = world.hands.adopted[0]
    assert (followed.job, followed.attempt, followed.cursors, followed.output_offset) == ("one", 4, {0: 12}, 34)
    assert (world.watch.lost, world.hands.acts) == ([], [])


def test_an_attempt_without_a_shim_is_gone(world: World) -> None:
    world.hands.found = False
    world.take_up(job(Phase.RUNNING), cursors())
    assert world.watch.lost == [("one", 4)]


def test_an_exit_written_while_the_shim_runs_is_not_the_end_of_the_attempt(world: World) -> None:
    """A training can write one: its shim would hold the lock of the job, which no later attempt could get."""
    folder = world.hands.folder("one", 4)
    (folder / "run").mkdir(parents=True)
    (folder / "run/exit.json").write_text('{"error": "forged"}')
    world.take_up(job(Phase.RUNNING), cursors())
    assert world.watch.lost == []


def test_a_launch_that_was_decided_and_never_begun_is_carried_out(world: World) -> None:
    """Nothing went wrong with the training: to call it lost would cost budget and tell of an incident."""
    world.runs = False
    world.take_up(job(Phase.STARTING, reason="newest proven checkpoint"), cursors())
    (act,) = world.hands.acts
    assert isinstance(act, de.Launch)
    assert (act.attempt, act.resume_from, act.reason) == (4, None, "newest proven checkpoint")
    assert (world.hands.adopted, world.watch.lost) == ([], [])


def test_a_launch_that_left_its_exit_is_not_begun_again(world: World) -> None:
    world.runs = world.hands.found = False
    folder = world.hands.folder("one", 4)
    (folder / "run").mkdir(parents=True)
    (folder / "run/exit.json").write_text("{}")
    world.take_up(job(Phase.STARTING), cursors())
    assert (world.hands.acts, world.watch.lost) == ([], [("one", 4)])


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.KILLING])
def test_a_launch_of_a_later_version_is_named_and_its_attempt_is_left_alone(world: World, phase: Phase) -> None:
    """The daemon was put back to an older version while a training ran: what it cannot read is not absent."""
    world.runs = world.hands.found = False
    folder = world.hands.folder("one", 4)
    (folder / "run").mkdir(parents=True)
    (folder / "launch.json").write_text('{"version": 2}')
    before = job(phase, stop=StopOrder(at=START, reason="stopped by its user", save=True))
    assert world.take_up(before, cursors()) == before
    assert (world.hands.adopted, world.watch.lost, world.hands.acts) == ([], [], [])
    assert world.hands.left_alone == [("one", 4)]
    (report,) = world.reported
    assert isinstance(report, ev.SupervisionChanged)
    assert f"{folder}/launch.json has version 2" in report.error
    assert "install the version of rocm-supervisor that wrote it" in report.error


@pytest.mark.parametrize("name", ["shim.json", "exit.json"])
def test_a_training_that_gives_its_records_a_later_version_is_not_left_alone(world: World, name: str) -> None:
    """It was neither judged nor to be stopped again once the daemon had been restarted."""
    world.runs = world.hands.found = False
    folder = world.hands.folder("one", 4)
    (folder / "run").mkdir(parents=True)
    (folder / "launch.json").write_text('{"version": 1}')
    (folder / "run" / name).write_text('{"version": 2, "exit_code": 0}')
    world.take_up(job(Phase.RUNNING), cursors())
    assert world.watch.lost == [("one", 4)]
    assert world.reported == []


@pytest.mark.parametrize("record", ['{"argv": []}', '{"version": 0}', '{"version": 1}', '{"version": "2"}', "torn"])
def test_launches_of_this_version_or_an_older_one_are_taken_up(world: World, record: str) -> None:
    folder = world.hands.folder("one", 4)
    (folder / "run").mkdir(parents=True)
    (folder / "launch.json").write_text(record)
    world.take_up(job(Phase.RUNNING), cursors())
    assert [followed.attempt for followed in world.hands.adopted] == [4]
    assert world.reported == []


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.BACKOFF, Phase.FINISHED, Phase.FAILED, Phase.STOPPED])
def test_a_job_of_which_nothing_runs_is_left_as_it_is(world: World, phase: Phase) -> None:
    world.take_up(job(phase), cursors())
    assert (world.hands.adopted, world.watch.lost, world.hands.acts) == ([], [], [])


def test_an_attempt_whose_end_is_recorded_is_not_looked_for(world: World) -> None:
    ended = Attempt(number=4, launched_at=START, exit=ExitStatus(at=START, code=1))
    world.take_up(job(Phase.RUNNING, attempt=ended), cursors())
    assert world.hands.adopted == []


def test_a_stop_is_carried_out_once_more_with_its_flag_and_its_saving(world: World) -> None:
    order = StopOrder(at=START, reason="stopped by its user", save=True)
    world.take_up(job(Phase.STOPPING, stop=order), cursors())
    (act,) = world.hands.acts
    assert isinstance(act, de.Stop)
    assert (act.job, act.attempt, act.reason, act.save) == ("one", 4, "stopped by its user", True)


def test_a_kill_is_carried_out_once_more(world: World) -> None:
    order = StopOrder(at=START, reason="deaf", save=False, killed_at=START)
    world.take_up(job(Phase.KILLING, stop=order), cursors())
    assert [type(act) for act in world.hands.acts] == [de.Kill]


@pytest.mark.parametrize(("recorded", "last"), [(25, 25), (5, 10), (None, 10)])
def test_the_last_step_is_the_furthest_that_the_record_knows(world: World, recorded: int | None, last: int) -> None:
    taken = world.take_up(job(Phase.RUNNING), cursors(recorded))
    assert taken.attempt is not None
    assert taken.attempt.last_step == last


def test_the_stop_of_the_daemon_before_is_forgotten(world: World) -> None:
    assert world.take_up(job(Phase.BACKOFF, shutting_down=True), cursors()).shutting_down is False
