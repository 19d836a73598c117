"""Beside a real attempt something stands by while it is wanted, makes room, and comes back."""

from __future__ import annotations

import decimal
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from clocks_by_hand import START, until

from supervisor.config.settings import JobSettings
from supervisor.core import attempt_files as names
from supervisor.core import events as ev
from supervisor.core.job import Attempt, DesiredState, Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import HostReading
from supervisor.daemon.job_state import JobState
from supervisor.daemon.launch.launch_spec import LaunchBuilder
from supervisor.daemon.launch.standby import StandbyDeps, StandbyStarter
from supervisor.runner import standby
from supervisor.runner.attempt_folder import prepare, read_shim
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.direct import DirectLauncher

ARGV = [sys.executable, "-c", "import time; time.sleep(60)"]
GIB = 1 << 30


class Clock:
    def now(self) -> Moment:
        return START.plus(60)


class Machine:
    """A job whose first attempt runs and has stepped, on a machine with as much memory as is said."""

    def __init__(self, state: Path, launcher: DirectLauncher | None = None) -> None:
        self.state, self.launcher = state, launcher or DirectLauncher()
        self.settings = JobSettings(command=ARGV, standby=True)
        self.available = 8
        self.first, self.second = state / "jobs" / "one" / "1", state / "jobs" / "one" / "2"
        self.composer = LaunchBuilder(
            clock=Clock(),
            state=state,
            settings=lambda _: self.settings,
            gfx_versions=lambda _: (),
            visible=lambda _: None,
            with_agent=lambda: True,
            code=lambda: INSTALLED,
        )
        composed = self.composer(Job(name="one", since=START), 1, None)
        prepare(state, "one", 1, argv=ARGV, cwd=composed.cwd, env=composed.env, grace_s=1, save_s=1, group=None)
        self.launcher.launch("one", self.first)
        note = read_shim(self.first)
        assert note is not None
        attempt = Attempt(number=1, launched_at=START, first_step_at=START, training_pid=note.training_pid)
        self.job_state = JobState(job=Job(name="one", since=START, phase=Phase.RUNNING, attempt=attempt), rules=())
        self.job_states = {"one": self.job_state}
        self.standbys = StandbyStarter(
            StandbyDeps(
                clock=Clock(),
                state=state,
                launcher=self.launcher,
                settings=lambda _: self.settings,
                job_states=lambda: self.job_states,
                host=self.host,
                compose=self.composer,
                with_agent=lambda: True,
                group=None,
            )
        )

    def host(self) -> HostReading:
        available = self.available * GIB
        return HostReading(at=START, memory_total_bytes=16 * GIB, memory_available_bytes=available)

    def claimed(self, pid: int | None) -> None:
        facts: dict[str, object] = {"imported": [["decimal", decimal.__file__], "no pair", ["x", 3]]}
        agent_event = ev.AgentEvent.CLAIMED
        output = ev.AgentReported(at=START, job="one", attempt=1, agent_event=agent_event, facts=facts, pid=pid, rank=0)
        self.standbys.take(output, START)

    def looks(self) -> str | None:
        self.standbys.look()
        return self.job_state.standby

    def end(self) -> None:
        self.standbys.end()
        for folder in (self.first, self.second):
            self.launcher.kill_all("one", folder)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    item = Machine(tmp_path)
    yield item
    item.end()


def training(machine: Machine) -> int | None:
    return machine.job_state.job.attempt.training_pid if machine.job_state.job.attempt else None


def test_nothing_stands_by_before_it_is_known_what_is_imported_by_whom(machine: Machine) -> None:
    assert machine.looks() is None
    machine.claimed(os.getpid())  # a child of the command: an interpreter of the command's would save it nothing
    assert machine.looks() is None
    assert not machine.second.exists()
    machine.claimed(training(machine))
    assert machine.looks() is None, "once an attempt it is looked for, and said that there is none"


def test_it_makes_room_where_memory_is_short_and_comes_back(machine: Machine) -> None:
    machine.claimed(training(machine))
    for _ in range(2):
        assert machine.looks() == "importing"
        until(lambda: machine.looks() == "ready", "it to be ready")
        machine.available = 2
        assert machine.looks() is None
        assert not standby.waits(machine.second)
        assert not standby.folder_of(machine.second).exists()
        machine.available = 8


class HeldDismissal(DirectLauncher):
    """A launcher whose `dismiss` waits for a word."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def dismiss(self, slot: str, folder: Path) -> None:
        self.entered.set()
        assert self.released.wait(30)
        super().dismiss(slot, folder)


def test_a_daemon_that_ends_waits_for_a_standby_that_is_being_ended(tmp_path: Path) -> None:
    """Its files would be left behind."""
    launcher = HeldDismissal()
    machine = Machine(tmp_path, launcher)
    machine.claimed(training(machine))
    machine.looks()
    until(lambda: machine.looks() == "ready", "it to be ready")
    machine.available = 2
    with ThreadPoolExecutor(2) as threads:
        looking = threads.submit(machine.looks)
        assert launcher.entered.wait(30)
        ending = threads.submit(machine.standbys.end)
        launcher.released.set()
        ending.result(30)
        assert not standby.folder_of(machine.second).exists()
        looking.result(30)
    machine.end()


def test_one_that_becomes_ready_while_it_is_looked_at_has_not_ended(machine: Machine) -> None:
    machine.claimed(training(machine))
    machine.looks()
    until(lambda: machine.looks() == "ready", "it to be ready")
    note, over = standby.folder_of(machine.second) / names.READY, threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            note.rename(note.with_name("aside")).rename(note)

    with ThreadPoolExecutor(1) as other:
        flapping = other.submit(come_and_go)
        looks = {machine.looks() for _ in range(2000)}
        over.set()
        flapping.result()
    assert looks == {"importing", "ready"}


@pytest.mark.parametrize("why", ["stopped", "switched off", "removed"])
def test_it_ends_with_what_it_was_for(machine: Machine, why: str) -> None:
    machine.claimed(training(machine))
    machine.looks()
    until(lambda: machine.looks() == "ready", "it to be ready")
    if why == "stopped":
        machine.job_state.job = replace(machine.job_state.job, desired_state=DesiredState.STOP)
    if why == "switched off":
        machine.settings = JobSettings(command=ARGV)
    if why == "removed":
        machine.job_states.clear()
    machine.looks()
    assert not standby.waits(machine.second)
    assert not machine.second.exists()


def test_what_does_not_work_out_is_tried_once_an_attempt(machine: Machine) -> None:
    machine.settings = JobSettings(command=ARGV, standby=True, standby_modules=["no.such.module"])
    machine.claimed(training(machine))
    machine.looks()
    until(lambda: machine.looks() is None, "it to be given up")
    assert machine.looks() is None
    assert not machine.second.exists()


def test_between_the_decision_and_the_word_it_is_left_alone(machine: Machine) -> None:
    machine.claimed(training(machine))
    machine.looks()
    until(lambda: machine.looks() == "ready", "it to be ready")
    job = machine.job_state.job
    machine.job_state.job = replace(job, phase=Phase.STARTING, attempt=Attempt(number=2, launched_at=START))
    machine.looks()
    assert standby.waits(machine.second)
    machine.job_state.job = replace(machine.job_state.job, phase=Phase.RUNNING)
    machine.looks()
    assert not standby.waits(machine.second)


def test_after_the_daemons_end_nothing_is_started(machine: Machine) -> None:
    machine.claimed(training(machine))
    machine.standbys.end()
    assert machine.looks() is None
    assert not machine.second.exists()


def test_the_word_goes_to_the_attempt_that_it_is_for(machine: Machine) -> None:
    machine.claimed(training(machine))
    machine.looks()
    until(lambda: machine.looks() == "ready", "it to be ready")
    assert not machine.standbys.go("one", machine.second.with_name("3"))
    assert standby.waits(machine.second)
    assert not machine.standbys.go("another", machine.second)
    composed = machine.composer(machine.job_state.job, 2, None)
    machine.launcher.signal("one", machine.first, signal.SIGQUIT)
    until(lambda: not machine.launcher.alive("one", machine.first), "the end of the first")
    prepare(machine.state, "one", 2, argv=ARGV, cwd=composed.cwd, env=composed.env, grace_s=1, save_s=1, group=None)
    assert machine.standbys.go("one", machine.second)
    assert machine.launcher.alive("one", machine.second)
