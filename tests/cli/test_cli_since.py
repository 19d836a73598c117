"""What `--since` means on a day on which the clock is changed, wherever the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from supervisor.cli.since import Since, since_unix_s

NOW = 1.8e9


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return what moves this process to a time zone."""

    def move_to(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield move_to
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "given", "meant"),
    [
        ("Europe/Berlin", "2026-10-25 02:30", "2026-10-25T02:30+02:00"),
        ("Europe/Berlin", "2026-03-29 02:30", "2026-03-29T01:30+01:00"),
        ("America/New_York", "2026-11-01 01:30", "2026-11-01T01:30-04:00"),
        ("America/New_York", "2026-03-08 02:30", "2026-03-08T01:30-05:00"),
        ("Australia/Lord_Howe", "2026-04-05 01:45", "2026-04-05T01:45+11:00"),
        ("Australia/Lord_Howe", "2026-10-04 02:15", "2026-10-04T01:45+10:30"),
        ("Australia/Lord_Howe", "2026-07-01", "2026-07-01T00:00+10:30"),
    ],
)
def test_of_two_times_that_a_clock_shows_the_first_is_meant_and_one_that_it_leaves_out_was_over_before(
    move: Callable[[str], None], zone: str, given: str, meant: str
) -> None:
    move(zone)
    found = since_unix_s(Since().convert(given, None, None), NOW)
    assert found == datetime.fromisoformat(meant).timestamp()
