"""Progress and success criteria as people read them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from supervisor.cli.status import progress_lines
from supervisor.cli.table import Pen
from supervisor.control import types

NOW = 1_763_165_520.0
PLAIN = Pen()


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(**fields: object) -> list[str]:
    job = msgspec.to_builtins(types.JobStatus(name="yolo", phase="running", **fields))  # type: ignore[arg-type]  # by name
    return progress_lines(job, NOW, PLAIN)


def test_the_end_has_its_bounds_and_each_criterion_its_mark() -> None:
    criteria = [
        types.Criterion(name="batches_per_s", verdict="met", text="18/s, at least 15 wanted"),
        types.Criterion(name="map_rises", verdict="unknown", text="two validations must have ended"),
        types.Criterion(name="no_nan", verdict="not_met", text="3 losses\x1b[2J were not finite"),
    ]
    ends = {"eta": NOW + 90_000, "eta_early": NOW + 80_000, "eta_late": NOW + 120_000}
    assert shown(**ends, epoch_s=4500.0, step=900, steps_expected=1000, expectations=criteria) == [
        "",
        "yolo  done 2025-11-16 01:12 (in 22 h 13 min to 1 d 9 h), an epoch takes 1 h 15 min, 900 of 1000 steps "
        "expected by now",
        "  [x] batches_per_s: 18/s, at least 15 wanted",
        "  [?] map_rises: two validations must have ended",
        "  [ ] no_nan: 3 losses were not finite",
    ]


def test_without_an_end_or_criteria_there_are_no_lines() -> None:
    assert shown() == []
    assert progress_lines({"name": "old"}, NOW, PLAIN) == []
