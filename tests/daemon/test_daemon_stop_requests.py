"""A user's stop is kept outside the record, and the next daemon knows of it whatever was committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from clocks_by_hand import START, HandClock

from supervisor.core import events as ev
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.stop_requests import FOLDER, StopRequests
from supervisor.daemon.threads import Threads

STOP = ev.UserRequest(at=START, job="night", ask=ev.Ask.STOP, by="uid 1000")


@pytest.fixture
def requests(tmp_path: Path) -> Iterator[StopRequests]:
    threads = Threads(HandClock(), Inbox().put)
    yield StopRequests(tmp_path, threads)
    threads.end()


def test_a_stop_is_there_for_the_next_daemon_until_its_job_is_started_again(requests: StopRequests) -> None:
    assert requests.find("night", START) is None
    assert requests.keep(STOP)
    assert requests.find("night", START) == STOP
    assert requests.find("day", START) is None
    assert requests.keep(replace(STOP, ask=ev.Ask.RESTART))
    assert requests.find("night", START) is None
    assert requests.keep(replace(STOP, ask=ev.Ask.START)), "there is nothing to remove"


def test_a_file_whose_content_cannot_be_read_is_a_stop(requests: StopRequests, tmp_path: Path) -> None:
    assert requests.keep(STOP)
    (tmp_path / FOLDER / "night").write_bytes(b"\xff{")
    found = requests.find("night", START)
    assert found is not None
    assert (found.ask, found.by) == (ev.Ask.STOP, "unknown")


def test_a_stop_that_cannot_be_kept_is_reported_and_raises_nothing(requests: StopRequests, tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file in its place")
    assert not requests.keep(STOP)
    assert requests.find("night", START) is None


def test_a_folder_in_its_place_is_moved_aside(requests: StopRequests, tmp_path: Path) -> None:
    (tmp_path / FOLDER / "night" / "other").mkdir(parents=True)
    assert requests.keep(STOP)
    assert requests.find("night", START) == STOP
    assert (tmp_path / FOLDER / "night.found-1" / "other").exists()


def test_what_is_kept_of_a_job_is_forgotten_with_it(requests: StopRequests) -> None:
    assert requests.keep(STOP)
    requests.forget("night")
    requests.forget("night")
    assert requests.find("night", START) is None
