"""A log of another machine has the differences of its own times, whichever zone this one is in."""

from __future__ import annotations

import time

import pytest

from supervisor.sources.kernel.log_lines import log_line


@pytest.mark.parametrize(
    ("zone", "before", "after"),
    [
        ("Europe/Berlin", "2026-03-29T02:59:59", "2026-03-29T03:00:01"),
        ("America/New_York", "2026-03-08T02:59:59", "2026-03-08T03:00:01"),
        ("Australia/Lord_Howe", "2026-10-04T02:29:59", "2026-10-04T02:30:01"),
        ("Europe/Berlin", "2026-10-25T01:59:59", "2026-10-25T02:00:01"),
    ],
)
def test_lines_over_a_change_of_this_machine_s_clock_are_as_far_apart_as_they_were(
    monkeypatch: pytest.MonkeyPatch, zone: str, before: str, after: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        times = [log_line(f"{stamp}.000000+00:00 box kernel: a line").at_s for stamp in (before, after)]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert times[0] is not None
    assert times[1] is not None
    assert times[1] - times[0] == 2.0
