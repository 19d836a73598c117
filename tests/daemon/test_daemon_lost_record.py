"""A job whose record was lost is taken up from the folders of its attempts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clocks_by_hand import START

from supervisor.core.job import Attempt, DesiredState, Job, Phase
from supervisor.daemon.record.lost_record import LostRecord
from supervisor.runner import process_table
from supervisor.store.archive import Archive
from supervisor.store.store import Store

NOW = START.plus(50_000)


class Machine:
    """A state directory, its record and what runs of which attempt."""

    def __init__(self, state: Path) -> None:
        self.state, self.running = state, set[int]()
        self.store = Store.open(f"sqlite:///{state}/supervisor.db", NOW, "boot")

    def attempt(self, number: int, exit_code: int | None = None, *, begun: bool = True) -> None:
        run = self.state / "jobs" / "one" / str(number) / "run"
        run.mkdir(parents=True)
        started = NOW.unix_s - 1000 + 100 * number
        if begun:
            note = {
                "version": 1,
                "pid": 70 + number,
                "start_ticks": 5,
                "boot_id": process_table.boot_id(),
                "training_pid": 90,
            }
            (run / "shim.json").write_text(json.dumps({**note, "started_unix_s": started}))
        if exit_code is not None:
            (run / "exit.json").write_text(json.dumps({"exit_code": exit_code, "ended_unix_s": started + 50}))

    def completed(self, job: Job | None = None) -> Job:
        lost = LostRecord(self.state, self.store, lambda _, folder: int(folder.name) in self.running)
        return lost.completed(job or Job(name="one", since=NOW), NOW)

    def history(self) -> list[tuple[int, float | None, int | None]]:
        self.store.close(NOW)
        rows = Archive(self.state / "supervisor.db").attempts("one", 1000)
        return sorted((row.number, row.ended_unix_s, row.exit_code) for row in rows)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_job_without_folders_stays_as_it_is(machine: Machine) -> None:
    job = Job(name="one", since=NOW)
    assert machine.completed(job) is job


def test_an_attempt_that_still_runs_is_the_jobs_own_again(machine: Machine) -> None:
    machine.attempt(1, 1)
    machine.attempt(2)
    machine.running = {2}
    job = machine.completed()
    assert job.attempt is not None
    assert (job.phase, job.number, job.next_number, job.attempt.shim_pid) == (Phase.STARTING, 2, 3, 72)
    assert job.attempt.launched_at.unix_s == NOW.unix_s - 800
    assert job.rebuilt == "the record was lost: attempts 1 to 2 taken from the folders, attempt 2 still ran"
    assert machine.history() == [(1, NOW.unix_s - 850, 1), (2, None, None)]


def test_an_attempt_that_ended_meanwhile_is_judged_by_its_folder(machine: Machine) -> None:
    machine.attempt(1, 0)
    job = machine.completed()
    assert (job.phase, job.number, job.rebuilt) == (
        Phase.STARTING,
        1,
        "the record was lost: attempt 1 taken from the folders, attempt 1 had ended",
    )


def test_the_next_number_is_beyond_every_folder(machine: Machine) -> None:
    """An attempt that cannot be killed lives on while later ones were tried; another never came up."""
    for number in (3, 4):
        machine.attempt(number, 1)
    machine.attempt(7, begun=False)
    machine.running = {3}
    job = machine.completed()
    assert (job.number, job.next_number) == (3, 8)


def test_a_folder_in_which_nothing_began_is_no_attempt_to_judge(machine: Machine) -> None:
    machine.attempt(1, begun=False)
    job = machine.completed()
    assert (job.phase, job.attempt, job.next_number) == (Phase.PENDING, None, 2)


def test_a_record_that_is_older_than_the_folders_is_completed(machine: Machine) -> None:
    for number in (1, 2, 3):
        machine.attempt(number, 1)
    known = Job(name="one", since=START, phase=Phase.BACKOFF, attempt=Attempt(number=1, launched_at=START))
    assert machine.completed(known).number == 3
    assert [number for number, _, _ in machine.history()] == [2, 3]


def test_what_is_not_to_run_is_not_started_and_keeps_its_numbers(machine: Machine) -> None:
    machine.attempt(4, 1)
    off = Job(name="one", since=NOW, desired_state=DesiredState.STOP, phase=Phase.STOPPED)
    job = machine.completed(off)
    assert (job.phase, job.attempt, job.next_number) == (Phase.STOPPED, None, 5)


def test_what_runs_is_watched_also_where_it_would_not_have_been_started(machine: Machine) -> None:
    machine.attempt(4)
    machine.running = {4}
    job = machine.completed(Job(name="one", since=NOW, desired_state=DesiredState.STOP, phase=Phase.STOPPED))
    assert (job.phase, job.number, job.desired_state) == (Phase.STARTING, 4, DesiredState.RUN)


@pytest.mark.parametrize("name", ["current", "007", "-1", "1.found-1", "standby-2", "12345678901", "²"])
def test_other_names_are_no_attempts(machine: Machine, name: str) -> None:
    (machine.state / "jobs" / "one" / name).mkdir(parents=True)
    assert machine.completed().next_number == 1


def test_a_recorded_job_is_left_alone(machine: Machine) -> None:
    machine.attempt(1, 1)
    known = Job(name="one", since=START, phase=Phase.BACKOFF, attempt=Attempt(number=1, launched_at=START))
    assert machine.completed(known) is known
