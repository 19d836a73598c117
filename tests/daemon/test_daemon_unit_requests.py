"""What systemctl is asked at a job's unit becomes its user's request, once, and the later of two wishes holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from clocks_by_hand import START, HandClock

from supervisor.core import attempt_files as names
from supervisor.core import events as ev
from supervisor.core.job import Attempt, Job, Phase
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.stop_requests import StopRequests
from supervisor.daemon.threads import Threads
from supervisor.daemon.unit_requests import UnitRequests
from supervisor.runner import standby


class Desk:
    """Jobs with their attempts' folders, and what was asked of them."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.folder, self.put = HandClock(), folder, list[ev.Event]()
        self.threads = Threads(self.clock, Inbox().put)
        self.kept = StopRequests(folder, self.threads)
        attempt = Attempt(number=1, launched_at=START)
        self.job = replace(Job(name="night", since=START), attempt=attempt, phase=Phase.STOPPED)
        self.begin()

    def begin(self) -> None:
        """Another daemon takes over: it remembers nothing of what the last one did."""
        self.requests = UnitRequests(
            clock=self.clock, put=self.put.append, kept=self.kept, jobs=lambda: [self.job], folder=self.at
        )

    def at(self, job: str, attempt: int) -> Path:
        return self.folder / job / str(attempt)

    def note(self, name: str, folder: Path | None = None, after_s: float = 0.0) -> None:
        path = (folder or self.at("night", 1)) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (START.unix_s + after_s,) * 2)

    def asked(self) -> list[tuple[ev.Ask, str]]:
        """Return what was asked since the last look."""
        found = [(event.ask, event.by) for event in self.put if isinstance(event, ev.UserRequest)]
        self.put.clear()
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.threads.end()


def test_an_attempt_whose_unit_was_not_stopped_asks_for_nothing(desk: Desk) -> None:
    desk.requests.find_stop("night", 1)
    desk.requests.find_starts()
    assert desk.asked() == []


@pytest.mark.parametrize("stood_by", [False, True])
def test_a_stop_of_the_unit_is_asked_once_and_kept(desk: Desk, *, stood_by: bool) -> None:
    folder = desk.at("night", 1)
    desk.note(names.STOP_ASKED, standby.folder_of(folder) if stood_by else None, after_s=-3)
    for _ in range(2):
        desk.requests.find_stop("night", 1)
    assert desk.asked() == [(ev.Ask.STOP, "systemctl stop")]
    assert desk.kept.find("night", START) is not None
    assert desk.kept.asked_unix_s("night") == START.unix_s - 3


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FAILED, Phase.FINISHED, Phase.BACKOFF])
def test_what_rests_or_waits_is_started(desk: Desk, phase: Phase) -> None:
    desk.job = replace(desk.job, phase=phase)
    desk.note(names.START_ASKED)
    for _ in range(2):
        desk.requests.find_starts()
    assert desk.asked() == [(ev.Ask.START, "systemctl start")]


def test_what_runs_is_not_started(desk: Desk) -> None:
    desk.job = replace(desk.job, phase=Phase.RUNNING)
    desk.note(names.START_ASKED)
    desk.requests.find_starts()
    assert desk.asked() == []


@pytest.mark.parametrize(("start_s", "expected"), [(-1.0, []), (1.0, [(ev.Ask.START, "systemctl start")])])
def test_of_a_stop_and_a_start_the_later_one_holds_also_for_another_daemon(
    desk: Desk, start_s: float, expected: list[tuple[ev.Ask, str]]
) -> None:
    desk.kept.keep(ev.UserRequest(at=START, job="night", ask=ev.Ask.STOP, by="uid 1000"))
    desk.note(names.START_ASKED, after_s=start_s)
    desk.begin()
    desk.requests.find_starts()
    assert desk.asked() == expected
