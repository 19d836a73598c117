"""Series for charts: as many points as asked, no spike lost, and the same as the rows folded by hand."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.store import schema, series
from supervisor.store.series import Window

BEGAN = 1_763_600_000
ZERO = {"job": "yolo", "attempt": 1, "rank": 0, "loss_known": 5, "data_wait_known": 0, "non_finite": 0, "steps": 5}


@pytest.fixture
def record(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    schema.bring_to_head(tmp_path / "supervisor.db")
    with closing(sqlite3.connect(tmp_path / "supervisor.db", isolation_level=None)) as connection:
        yield connection


def add_bucket(record: sqlite3.Connection, second: int, first: int, loss: float, **more: object) -> None:
    """Five steps from `first` on, in the ten seconds from `second` on."""
    times = {"bucket_unix_s": BEGAN + second, "first_unix_s": BEGAN + second, "last_unix_s": BEGAN + second + 8.0}
    row: dict[str, object] = {
        **ZERO,
        **times,
        "step_first": first,
        "step_last": first + 4,
        "loss_mean": loss,
        "loss_min": loss - 0.5,
    }
    row |= {"loss_max": loss + 0.5, **more}
    record.execute(
        f"INSERT INTO step_metrics ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
    )


def read(record: sqlite3.Connection, points: int = 600, since: int = 0, until: int = 100_000) -> series.Columns:
    window = Window(since_unix_s=BEGAN + since, until_unix_s=BEGAN + until, points=points)
    return series.read_steps(record, "yolo", window, series.read_spans(record, "yolo"))


def test_many_buckets_become_few_points_without_losing_a_spike(record: sqlite3.Connection) -> None:
    for number in range(1000):
        add_bucket(record, 10 * number, 1 + 5 * number, 2.0 if number != 500 else 90.0)
    found = read(record, points=100, until=10_000)
    assert len(found["at"]) == 100
    assert max(value for value in found["loss_max"] if value is not None) == 90.5
    assert sum(value for value in found["loss"] if value is not None) / 100 == pytest.approx(2.088)
    assert found["step"][-1] == 5000


def test_the_pace_is_that_of_the_time_between_steps(record: sqlite3.Connection) -> None:
    add_bucket(record, 0, 1, 2.0)
    assert read(record)["steps_per_s"] == [0.5]


def test_a_pause_and_a_new_attempt_break_the_line(record: sqlite3.Connection) -> None:
    for second in (0, 10, 20, 500, 510):
        add_bucket(record, second, 1 + second, 2.0)
    add_bucket(record, 520, 600, 2.0, attempt=2)
    found = read(record, until=600)
    assert found["loss"] == [2.0, 2.0, 2.0, None, 2.0, 2.0, None, 2.0]


def test_slow_steps_are_one_line(record: sqlite3.Connection) -> None:
    for minute in range(10):
        add_bucket(record, 60 * minute, minute, 2.0)
    assert None not in read(record, until=600)["loss"]


def test_work_that_was_made_again_is_marked(record: sqlite3.Connection) -> None:
    for number in range(10):
        add_bucket(record, 10 * number, 1 + 5 * number, 2.0)
    for number in range(5):
        add_bucket(record, 200 + 10 * number, 31 + 5 * number, 2.0, attempt=2)
    found = read(record, until=600)
    marked = [step for step, again in zip(found["step"], found["again"], strict=True) if again]
    assert marked == [35, 40, 45, 50]


def test_steps_that_an_attempt_counts_itself_are_compared_with_none(record: sqlite3.Connection) -> None:
    add_bucket(record, 0, 1, 2.0)
    add_bucket(record, 100, 1, 2.0, attempt=2)
    assert read(record)["again"] == [1, None, 0]
    body = '{"word": "counting", "facts": {"scale": "attempt"}}'
    record.execute("INSERT INTO events VALUES (1, 0, 'agent_reported', 'yolo', 2, ?)", (body,))
    assert read(record)["again"] == [0, None, 0]


def test_other_jobs_ranks_and_times_are_left_out(record: sqlite3.Connection) -> None:
    add_bucket(record, 0, 1, 2.0)
    add_bucket(record, 0, 1, 7.0, rank=1)
    add_bucket(record, 0, 1, 7.0, job="other")
    add_bucket(record, 1000, 1, 7.0)
    assert read(record, until=500)["loss"] == [2.0]
    assert read(record, since=2000, until=3000)["loss"] == []


def test_an_attempt_by_its_steps(record: sqlite3.Connection) -> None:
    for number in range(100):
        add_bucket(record, 10 * number, 1 + 5 * number, 2.0, attempt=1 + number // 50)
    spans = series.read_spans(record, "yolo")
    found = series.read_attempt_steps(record, "yolo", spans, 2, 10)
    assert (len(found["at"]), found["step"][0], found["step"][-1]) == (10, 275, 500)
    assert series.read_attempt_steps(record, "yolo", spans, 3, 10)["at"] == []


def test_gpus_are_read_apart_and_unknown_stays_unknown(record: sqlite3.Connection) -> None:
    for second in range(60):
        values = (BEGAN + second, "0000:0a:00.0", "sysfs", 100.0, 80.0 if second != 30 else 99.0)
        record.execute(
            "INSERT INTO gpu_samples (at_unix_s, gpu, source, power_w, edge_c) VALUES (?, ?, ?, ?, ?)", values
        )
        record.execute(
            "INSERT INTO gpu_samples (at_unix_s, gpu, source) VALUES (?, '0000:0b:00.0', 'sysfs')", (BEGAN + second,)
        )
    window = Window(since_unix_s=BEGAN, until_unix_s=BEGAN + 60, points=2)
    found = series.read_gpus(record, [], window)
    assert found["0000:0a:00.0"]["temperature_c"] == [80.0, 99.0, 80.0]
    assert found["0000:0b:00.0"]["power_w"] == [None, None, None]
    assert list(series.read_gpus(record, ["0000:0b:00.0"], window)) == ["0000:0b:00.0"]
