"""The -shm file of the record is cut off while it is open: nothing is lost, and the process that maps it goes on."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from record_by_hand import alert, at, job, open_store

from supervisor.store.archive import Archive
from supervisor.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
WRITTEN, ALERT_BYTES = 600, 65536
"""Alerts that take so many pages that their -wal file has an index of several parts."""
PART_BYTES = 32768
CUT_OFF = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from test_wal_index import cut_off_and_use
cut_off_and_use(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
"""


def cut_off_and_use(folder: Path, bytes_left: int, use: str) -> None:
    """Cut the index off below an open record, use that, and commit an alert; for a process of its own."""
    store = open_store(folder)
    store.commit_beside(lambda commit: commit())
    write_alerts(store)
    index = folder / "supervisor.db-shm"
    assert index.stat().st_size > 2 * PART_BYTES
    os.truncate(index, bytes_left)
    if use == "end":
        store.close(at(2))
        return
    if use == "query":
        assert [found.name for found in store.load_jobs(at(2))] == ["night"]
    elif use == "archive":
        assert count_alerts(store) == WRITTEN
    with store.turn(at(2)):
        store.queue_alert(alert("after it was cut"), at(2))
    assert store.problem is None, store.problem
    assert count_alerts(store) == WRITTEN + 1
    copy_as_killed(folder)
    store.close(at(3))


def write_alerts(store: Store) -> None:
    """Write them in one commit."""
    with store.turn(at(1)):
        store.save_job(job())
        for number in range(WRITTEN):
            store.queue_alert(replace(alert(f"number {number}"), body=bytes(ALERT_BYTES)), at(1))


def count_alerts(store: Store) -> int:
    """Return how many alerts a reader of its own finds."""
    return sum(found.count for found in Archive(store.path).alert_counts())


def copy_as_killed(folder: Path) -> None:
    """Copy the files as a process that is killed now leaves them."""
    (folder / "killed").mkdir()
    for name in ("supervisor.db", "supervisor.db-wal"):
        shutil.copy(folder / name, folder / "killed")


def assert_intact(path: Path, count: int) -> None:
    """Assert that a record has so many alerts and no damage."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM alerts").fetchone() == (count,)


@pytest.mark.slow
@pytest.mark.parametrize("bytes_left", [0, 4096])
@pytest.mark.parametrize("use", ["commit", "query", "archive", "end"])
def test_an_index_that_is_cut_off_under_the_record_is_made_again(tmp_path: Path, bytes_left: int, use: str) -> None:
    code = CUT_OFF.format(tests=str(Path(__file__).parent))
    arguments = [sys.executable, "-c", code, str(tmp_path), str(bytes_left), use]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_intact(tmp_path / "supervisor.db", WRITTEN + (use != "end"))
    if use != "end":
        assert_intact(tmp_path / "killed" / "supervisor.db", WRITTEN + 1)
