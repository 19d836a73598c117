"""Steps are in the record exactly once, in whatever parts they came and however the daemon ended."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_by_hand import START, at, made, open_store

from supervisor.core import events as ev
from supervisor.core.readings import StepRecord
from supervisor.store.archive import Archive
from supervisor.store.records import StepBucket
from supervisor.store.steps import bucket_rows, merged
from supervisor.store.store import Store

ROOT = Path(__file__).resolve().parents[2]


def buckets(folder: Path, attempt: int | None = None) -> tuple[StepBucket, ...]:
    return Archive(folder / "supervisor.db").step_metrics("night", attempt)


def test_steps_are_folded_into_buckets_of_ten_seconds(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_steps(made(range(1, 25), cursor=24))
    store.close(START)
    first, second, third = buckets(tmp_path)
    assert [(item.steps, item.step_first, item.step_last) for item in (first, second, third)] == [
        (9, 1, 9),
        (10, 10, 19),
        (5, 20, 24),
    ]
    assert second.steps_per_s == pytest.approx(1.0)
    assert (second.loss_mean, second.lr_last, second.grad_norm_max) == (0.5, 0.01, 1.5)
    assert second.non_finite == 0


def test_a_bucket_written_in_parts_is_the_bucket_written_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for step in range(1, 25):
        store.add_steps(made([step], cursor=step))
        store.flush(at(step))
    store.add_steps(made(range(1, 25), cursor=24, attempt=2))
    store.close(START)
    assert_same(buckets(tmp_path, 1), buckets(tmp_path, 2))


def test_steps_wait_a_second_at_most_for_a_turn_that_commits_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    begun_at = at(100)
    store.flush(begun_at)
    with store.turn(begun_at.plus(0.1)):
        store.add_steps(made([1], cursor=1))
    store.flush(begun_at.plus(0.1))
    with store.turn(begun_at.plus(0.2)):
        store.add_steps(made([2], cursor=2))
    assert [bucket.steps for bucket in buckets(tmp_path)] == [1]
    with store.turn(begun_at.plus(1.2)):
        pass
    assert [bucket.steps for bucket in buckets(tmp_path)] == [2]


def test_the_mean_of_losses_near_the_largest_number_is_a_number(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for steps in (range(1, 6), range(6, 9)):
        store.add_steps(made(steps, cursor=steps[-1], loss=1.7e308))
        store.flush(at(steps[-1]))
    store.close(START)
    (bucket,) = buckets(tmp_path)
    assert bucket.steps == 8
    assert bucket.loss_mean == pytest.approx(1.7e308)


def assert_same(some: tuple[StepBucket, ...], others: tuple[StepBucket, ...]) -> None:
    """Equal in everything but the attempt; a mean of means may differ in its last digits."""
    assert len(some) == len(others)
    for item, other in zip(some, others, strict=True):
        for name in StepBucket.__slots__:
            assert name == "attempt" or about(getattr(item, name), getattr(other, name)), name


def about(value: object, other: object) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return value == pytest.approx(other, rel=1e-9, abs=1e-6)
    return value == other


def test_nan_is_counted_and_spoils_no_mean(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_steps(made([1, 2], cursor=2, loss=2.0))
    store.add_steps(made([3], cursor=3, loss=math.nan))
    store.add_steps(made([4], cursor=4, loss=math.inf))
    store.add_steps(made([5], cursor=5, loss=None))
    store.close(START)
    (bucket,) = buckets(tmp_path)
    assert (bucket.steps, bucket.non_finite, bucket.loss_mean, bucket.loss_max) == (5, 2, 2.0, 2.0)


def test_steps_that_come_twice_are_kept_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_steps(made([1, 2, 3], cursor=3))
    store.add_steps(made([1, 2, 3], cursor=3))
    store.close(START)
    again = open_store(tmp_path)
    again.add_steps(made([1, 2, 3], cursor=3))
    again.close(START)
    assert [bucket.steps for bucket in buckets(tmp_path)] == [3]


def test_ranks_are_kept_apart_and_the_first_is_the_one_shown(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_steps(made([1, 2], cursor=2))
    store.add_steps(made([1, 2, 3], cursor=3, rank=1))
    store.close(START)
    assert [bucket.steps for bucket in buckets(tmp_path)] == [2]
    again = open_store(tmp_path)
    assert again.cursors("night", 1).recorder == {0: 2, 1: 3}
    assert again.cursors("night", 1).last_step == 2
    again.close(START)


def test_a_new_daemon_reads_on_where_the_old_one_stood(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.turn(START):
        store.add_steps(made([1, 2], cursor=2))
        store.save_offsets("night", 1, output_bytes=900)
        store.save_offsets("night", 1, agent_log_bytes=30)
    store.close(START)
    again = open_store(tmp_path)
    cursors = again.cursors("night", 1)
    assert (dict(cursors.recorder), cursors.output_bytes, cursors.agent_log_bytes) == ({0: 2}, 900, 30)
    assert again.cursors("night", 2).recorder == {}
    again.close(START)


def test_steps_of_a_turn_that_failed_can_come_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    def failing_turn() -> None:
        with store.turn(START):
            store.add_steps(made([1, 2], cursor=2))
            raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        failing_turn()
    with store.turn(START):
        store.add_steps(made([1, 2], cursor=2))
    store.close(START)
    assert [bucket.steps for bucket in buckets(tmp_path)] == [2]


def test_longer_buckets_are_the_sum_of_the_short_ones(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_steps(made(range(1, 150), cursor=149))
    store.close(START)
    coarse = Archive(tmp_path / "supervisor.db").step_metrics("night", bucket_s=60)
    assert sum(item.steps for item in coarse) == 149
    assert len(coarse) in (3, 4)
    assert coarse[1].steps_per_s == pytest.approx(1.0)


maybe = st.none() | st.floats(width=32, allow_nan=True, allow_infinity=True)
some_records = st.lists(
    st.builds(
        lambda step, seconds, loss, norm, wait, drawn: StepRecord(
            at=at(seconds), step=step, loss=loss, lr=loss, grad_norm=norm, data_wait_s=wait, samples=drawn
        ),
        st.integers(1, 10**6),
        st.floats(0, 9.9),
        st.none() | st.floats(-1e6, 1e6) | st.just(math.nan),
        maybe,
        st.none() | st.floats(0, 100),
        st.none() | st.integers(1, 2**32 - 1),
    ),
    min_size=1,
    max_size=12,
)


ATTEMPTS = count(1)
"""Each example writes to attempts of its own in one database."""


@pytest.fixture
def filling(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close(START)


def event(part: list[StepRecord], cursor: int, attempt: int) -> ev.StepsMade:
    return ev.StepsMade(at=START, job="night", attempt=attempt, records=tuple(part), cursor=cursor)


@given(records=some_records, data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_way_of_cutting_a_bucket_gives_the_same_row(
    tmp_path: Path, filling: Store, records: list[StepRecord], data: st.DataObject
) -> None:
    """In memory and in SQL: both must fold as one."""
    cut = data.draw(st.integers(1, len(records)))
    parts = [part for part in (records[:cut], records[cut:]) if part]
    (whole,) = bucket_rows(event(records, 1, 1))
    row = bucket_rows(event(parts[0], 1, 1))[0]
    for part in parts[1:]:
        row = merged(row, bucket_rows(event(part, 1, 1))[0])
    assert row.keys() == whole.keys()
    assert all(about(row[name], whole[name]) for name in row), (row, whole)
    in_parts, at_once = next(ATTEMPTS), next(ATTEMPTS)
    for number, part in enumerate(parts, start=1):
        filling.add_steps(event(part, number, in_parts))
        filling.flush(START)
    filling.add_steps(event(records, 1, at_once))
    filling.flush(START)
    assert_same(buckets(tmp_path, in_parts), buckets(tmp_path, at_once))


WRITER = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from record_by_hand import at, made, open_store
store = open_store(Path(sys.argv[1]))
step = store.cursors("night", 1).recorder.get(0, 0)
while True:
    with store.turn(at(step)):
        store.add_steps(made([step + 1, step + 2, step + 3], cursor=step + 3))
        store.set_note("written", str(step + 3))
    step += 3
    store.flush(at(step))
    print(step, flush=True)
"""


@pytest.mark.slow
def test_no_step_is_lost_or_doubled_by_kill_9(tmp_path: Path) -> None:
    code = WRITER.format(tests=str(Path(__file__).parent))
    for lines in (1, 7, 40):
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
        assert child.stdout is not None
        reported = [int(child.stdout.readline()) for _ in range(lines)][-1]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = open_store(tmp_path)
        cursor = store.cursors("night", 1).recorder[0]
        store.close(START)
        found = buckets(tmp_path)
        assert cursor >= reported
        assert sum(match.steps for match in found) == cursor
        assert max(match.step_last for match in found) == cursor
