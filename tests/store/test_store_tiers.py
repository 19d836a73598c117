"""A chart of months reads few rows and shows what the raw rows show, whatever came late or was deleted since."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_by_hand import START, at, gpu, made, open_store, tree

from supervisor.store import schema, series, tiers
from supervisor.store.database import Database
from supervisor.store.rollup import WINDOWS_AT_ONCE, Rollup
from supervisor.store.series import Window
from supervisor.store.statements import STEPS
from supervisor.store.store import Store
from supervisor.store.tiers import FIVE_MINUTES_S, HOUR_S, MINUTE_S, Segment, choose_width, plan_segments
from supervisor.store.write_queue import Pending

BEGAN = 1_763_600_400  # an hour begins
DAY_S = 86_400.0


class Keep:
    """Everything for ever."""

    step_metrics_days = samples_days = five_minutes_days = hours_days = incidents_days = 100_000.0
    database_limit_mb = 100_000.0


class Expire(Keep):
    """Samples for two weeks."""

    samples_days = 14.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    schema.bring_to_head(tmp_path / "supervisor.db")
    database = Database(tmp_path / "supervisor.db")
    database.connect()
    yield database
    database.close()


def read_only(database: Database) -> sqlite3.Connection:
    return sqlite3.connect(database.path, isolation_level=None)


def bucket(second: int, loss: float | None = 2.0, attempt: int = 1) -> dict[str, object]:
    """Ten seconds with five steps."""
    return {
        "job": "yolo", "attempt": attempt, "rank": 0, "bucket_unix_s": BEGAN + second, "steps": 5,
        "step_first": second // 2 + 1, "step_last": second // 2 + 5, "first_unix_s": BEGAN + second + 1.0,
        "last_unix_s": BEGAN + second + 9.0, "epoch": second // 3600, "loss_known": 0 if loss is None else 5,
        "loss_min": loss, "loss_mean": loss, "loss_max": loss, "loss_last": loss, "lr_last": 0.01,
        "grad_norm_max": 1.5, "data_wait_known": 5, "data_wait_mean_s": 0.02, "gpu_memory_max_bytes": 4_000_000_000,
        "steps_per_s": 0.5, "non_finite": int(loss is None), "samples": None, "tokens": None,
    }  # fmt: skip


def commit(database: Database, rollup: Rollup, *rows: dict[str, object]) -> None:
    """Write rows as a commit does, and have the tiers take notice."""
    pending = Pending()
    for row in rows:
        pending.put(STEPS, (row["attempt"], row["bucket_unix_s"]), row)
    database.write(pending)
    rollup.note_written(pending)


def read_steps(database: Database, since: int, until: int, points: int) -> series.Columns:
    with closing(read_only(database)) as connection:
        window = Window(since_unix_s=BEGAN + since, until_unix_s=BEGAN + until, points=points)
        return series.read_steps(connection, "yolo", window, series.read_spans(connection, "yolo"))


def count(database: Database, width_s: int, table: str = "step_tiers") -> int:
    with closing(read_only(database)) as connection:
        sql = f"SELECT count(*) FROM {table} WHERE width_s = ?"  # names of this file
        return int(connection.execute(sql, (width_s,)).fetchone()[0])


@given(st.floats(1, 1e7))
def test_points_are_as_long_as_wanted_and_of_whole_rows(wanted_s: float) -> None:
    width = choose_width(wanted_s)
    assert wanted_s <= width <= max(2 * wanted_s, 10)
    assert all(width % tier == 0 for tier in (MINUTE_S, FIVE_MINUTES_S, HOUR_S) if wanted_s >= 2 * tier)


def test_a_chart_of_a_day_is_the_same_from_the_tiers_as_from_the_raw_rows(database: Database) -> None:
    rows = [bucket(second, 2.0 + math.sin(second), 1 + second // 40_000) for second in range(0, 86_400, 10)]
    rows[5000] = bucket(50_000, 90.0, 2)
    rows[6000] = bucket(60_000, None, 2)
    commit(database, Rollup(), *rows)
    raw = {points: read_steps(database, 0, 86_400, points) for points in (600, 100, 10)}
    rollup = Rollup()
    for turn in range(4):
        rollup.run(database, BEGAN + 86_400 + 60 * turn + 100.0)
    assert [count(database, width) for width in tiers.STEPS.widths] == [1442, 290, 26]  # attempts share some
    for points, wanted in raw.items():
        found = read_steps(database, 0, 86_400, points)
        assert {name for name in wanted if found[name] != pytest.approx(wanted[name], nan_ok=True)} == set()


def test_one_call_aggregates_a_bounded_part_of_what_is_there_and_the_rest_is_read_raw(database: Database) -> None:
    commit(database, Rollup(), *(bucket(second) for second in range(0, 2 * 86_400, 100)))
    rollup = Rollup()
    rollup.run(database, BEGAN + 10 * 86_400.0)
    assert count(database, FIVE_MINUTES_S) == WINDOWS_AT_ONCE
    assert count(database, HOUR_S) == WINDOWS_AT_ONCE // 12
    assert len([at for at in read_steps(database, 0, 2 * 86_400, 576)["at"] if at is not None]) == 576
    for _ in range(6):
        rollup.run(database, BEGAN + 10 * 86_400.0)
    assert count(database, FIVE_MINUTES_S) == 576
    assert count(database, HOUR_S) == 48


def test_an_hour_is_aggregated_once_it_is_over_also_by_the_next_daemon(database: Database) -> None:
    commit(database, Rollup(), *(bucket(second) for second in range(0, 3600, 10)))
    Rollup().run(database, BEGAN + 3600 + 59.0)
    assert (count(database, FIVE_MINUTES_S), count(database, HOUR_S)) == (11, 0)
    Rollup().run(database, BEGAN + 3600 + 60.0)
    assert (count(database, FIVE_MINUTES_S), count(database, HOUR_S)) == (12, 1)


def test_steps_that_come_late_are_taken_into_every_tier(database: Database) -> None:
    rollup = Rollup()
    commit(database, rollup, *(bucket(second) for second in range(0, 7200, 10) if not 600 <= second < 1200))
    rollup.run(database, BEGAN + 7300.0)
    assert count(database, FIVE_MINUTES_S) == 22
    commit(database, rollup, *(bucket(second, 7.0) for second in range(600, 1200, 10)))
    rollup.run(database, BEGAN + 7360.0)
    assert count(database, FIVE_MINUTES_S) == 24
    with closing(read_only(database)) as connection:
        (steps_made,) = connection.execute(
            "SELECT steps FROM step_tiers WHERE width_s = 3600 AND bucket_unix_s = ?", (BEGAN,)
        ).fetchone()
    assert steps_made == 1800


def test_steps_that_came_late_are_taken_in_by_the_next_daemon_where_this_one_is_killed(database: Database) -> None:
    first, over_s = Rollup(), BEGAN + 2 * HOUR_S
    commit(database, first, *(bucket(second) for second in range(0, HOUR_S + 600, 10) if second // 600 != 2))
    first.run(database, over_s)
    commit(database, first, *(bucket(second) for second in range(1200, 1800, 10)))
    with closing(read_only(database)) as connection:
        steps = "SELECT sum(steps) FROM step_tiers WHERE width_s = ? AND bucket_unix_s < ?"

        def count(width_s: int) -> int:
            return int(connection.execute(steps, (width_s, BEGAN + HOUR_S)).fetchone()[0])

        assert count(HOUR_S) == 5 * 300
        Rollup().run(database, over_s)
        assert [count(width_s) for width_s in (MINUTE_S, FIVE_MINUTES_S, HOUR_S)] == [5 * 360] * 3


def test_a_clock_that_was_wrong_for_a_while_hides_nothing(database: Database) -> None:
    rollup = Rollup()
    commit(database, rollup, bucket(0), bucket(60 * 86_400))
    for _ in range(2):
        rollup.run(database, BEGAN + 61 * 86_400.0)
    commit(database, rollup, *(bucket(second) for second in range(300, 7200, 10)))
    rollup.run(database, BEGAN + 7300.0)
    assert count(database, FIVE_MINUTES_S) == 25
    assert len([at for at in read_steps(database, 0, 7200, 12)["at"] if at is not None]) == 12


def test_what_is_older_than_the_finer_rows_is_shown_by_coarser_ones(database: Database) -> None:
    commit(database, Rollup(), *(bucket(second) for second in range(0, 36_000, 10)))
    Rollup().run(database, BEGAN + 40_000.0)
    with closing(read_only(database)) as connection:
        connection.execute("DELETE FROM step_metrics WHERE bucket_unix_s < ?", (BEGAN + 30_000,))
        connection.execute("DELETE FROM step_tiers WHERE width_s = 60 AND bucket_unix_s < ?", (BEGAN + 25_000,))
        connection.execute("DELETE FROM step_tiers WHERE width_s = 300 AND bucket_unix_s < ?", (BEGAN + 20_000,))
        segments = plan_segments(connection, tiers.STEPS, 10, BEGAN, BEGAN + 36_000)
        found = sorted(
            (segment.since_unix_s - BEGAN, segment.until_unix_s - BEGAN, segment.width_s) for segment in segments
        )
        read = series.read_steps(
            connection, "yolo", Window(since_unix_s=BEGAN, until_unix_s=BEGAN + 36_000, points=1200), ()
        )
    assert found == [(0, 21_600, 3600), (21_600, 25_200, 300), (25_200, 30_000, 60), (30_000, 36_000, None)]
    assert read["at"] == []  # no attempt was asked for
    assert segments[0] == Segment(width_s=None, since_unix_s=BEGAN + 30_000, until_unix_s=BEGAN + 36_000)


def test_readings_of_gpus_and_processes_are_the_same_from_the_tiers(tmp_path: Path) -> None:
    store: Store = open_store(tmp_path)
    for second in range(0, 4000, 5):
        store.add_gpu_samples([gpu(second)])
        store.add_process_sample("night", 1, tree(second))
        store.flush(at(second))
    window = Window(since_unix_s=START.unix_s, until_unix_s=START.unix_s + 4000, points=6)
    with closing(sqlite3.connect(store.path)) as connection:
        raw = series.read_gpus(connection, [], window), series.read_processes(connection, "night", window)
    store.prune(at(5000), Keep())
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("SELECT count(*) FROM gpu_tiers").fetchone()[0] > 400
        connection.execute("DELETE FROM gpu_samples WHERE at_unix_s < ?", (START.unix_s + 3900,))
        connection.execute("DELETE FROM process_samples WHERE at_unix_s < ?", (START.unix_s + 3900,))
        found = series.read_gpus(connection, [], window), series.read_processes(connection, "night", window)
    assert [list(columns) for columns in found[0].values()] == [list(columns) for columns in raw[0].values()]
    for name, columns in raw[0].items():
        assert {column: found[0][name][column] for column in columns} == {
            column: pytest.approx(values) for column, values in columns.items()
        }
    assert {column: found[1][column] for column in raw[1]} == {
        column: pytest.approx(values) for column, values in raw[1].items()
    }
    store.close(at(5000))


def test_the_tiers_of_a_job_that_is_forgotten_go_with_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_steps(made(range(1, 100), 99))
    store.flush(at(1))
    store.prune(at(5000), Keep())
    store.delete_job("night", "night ")
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("SELECT count(*) FROM step_tiers").fetchone() == (0,)
    store.close(at(5000))


def test_expired_rows_are_deleted_also_where_nothing_can_be_aggregated(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_gpu_samples([gpu(0)])
    store.flush(at(1))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER refused BEFORE INSERT ON gpu_tiers BEGIN SELECT raise(FAIL, 'refused'); END")
    store.prune(at(15 * DAY_S), Expire())
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("SELECT count(*) FROM gpu_samples").fetchone() == (0,)
    store.close(at(5000))
