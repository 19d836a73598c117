"""A database that is full, locked, damaged or gone stops no supervision and loses nothing that matters."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from record_by_hand import (
    OTHER_BOOT,
    START,
    alert,
    at,
    checkpoint,
    gpu,
    incident,
    job,
    launch,
    made,
    open_store,
    record_everything,
    stop,
)

from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.store import files, schema
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError
from supervisor.store.files import BALLAST_BYTES
from supervisor.store.opening import prepare
from supervisor.store.store import Store, StoreError
from tests.rigs.killing_disk import killing
from tests.rigs.small_disk import mounted

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", megabytes=16) as small:
        yield small


def fill(folder: Path) -> Path:
    """Take every byte that is left."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def everything_that_matters(store: Store, second: float) -> None:
    with store.turn(at(second)):
        store.save_job(job())
        store.record_decision(stop())
        store.save_incident(incident())
        store.queue_alert(alert(f"at {second}"), at(second))
        store.save_checkpoint("night", 1, checkpoint(3, Verdict.PROVEN), at(second))


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_in_the_place_of_the_ballast_is_replaced_by_it(tmp_path: Path, kind: str) -> None:
    place, other = tmp_path / "supervisor.db.ballast", tmp_path / "other"
    other.write_text("another's")
    if kind == "pipe":
        os.mkfifo(place)
        held = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # so that whoever opens it to write does not wait
    else:
        place.symlink_to(other)
        held = os.open(other, os.O_RDONLY)
    files.Ballast(tmp_path / "supervisor.db").take()
    os.close(held)
    assert (stat.S_ISREG(place.lstat().st_mode), place.stat().st_size) == (True, BALLAST_BYTES)
    assert other.read_text() == "another's"


def test_a_pipe_in_the_place_of_the_database_is_named_as_no_file(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.db"
    os.mkfifo(path)
    with pytest.raises(StoreError, match=r"supervisor\.db is no file: something else has taken its place; move that"):
        prepare(path, 1.0)


@pytest.mark.slow
@pytest.mark.mounts
def test_on_a_full_disk_the_ballast_makes_room(small_disk: Path) -> None:
    store = open_store(small_disk)
    ballast = small_disk / "supervisor.db.ballast"
    assert ballast.stat().st_blocks * 512 >= BALLAST_BYTES
    fill(small_disk)
    with store.turn(at(1)):
        for number in range(1, 400):
            store.open_attempt(launch(number), "/x" * 500)
        store.save_job(job())
    assert not problem(store)
    assert not ballast.exists()
    assert rows(store.path, "SELECT count(*) FROM attempts") == [(399,)]
    store.close(at(2))


@pytest.mark.slow
@pytest.mark.mounts
def test_on_a_disk_that_stays_full_everything_waits_and_is_written_when_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(small_disk)
    store.add_steps(made(range(1, 6), cursor=5))
    store.flush(START)
    filler = fill(small_disk)
    (small_disk / "supervisor.db.ballast").unlink()
    fill(small_disk)
    second = 1.0
    while not problem(store) and second < 400:
        with store.turn(at(second)):
            store.open_attempt(launch(1), "/x" * 4000)
            store.add_gpu_samples([gpu(second)])
        everything_that_matters(store, second)
        second += 1
    assert problem(store)
    assert "full" in problem(store)
    for late in range(20):
        everything_that_matters(store, second + late)
        store.add_steps(made(range(6 + late, 7 + late), cursor=6 + late))
    assert store.checkpoints("night") == (checkpoint(3, Verdict.PROVEN),)
    assert store.prune(at(second + 20), Keep()) == 0
    queued = int(second) + 20 - 1
    filler.unlink()
    store.flush(at(second + 60))
    assert not problem(store)
    assert "store.unwritable" in caplog.text
    assert "store.writable_again" in caplog.text
    assert rows(store.path, "SELECT count(*) FROM alerts") == [(queued,)]
    assert rows(store.path, "SELECT count(*) FROM decisions") == [(queued,)]
    assert rows(store.path, "SELECT sum(steps) FROM step_metrics") == [(25,)]
    assert rows(store.path, "PRAGMA integrity_check") == [("ok",)]
    store.prune(at(second + 61), Keep())
    assert (small_disk / "supervisor.db.ballast").stat().st_size == BALLAST_BYTES
    store.close(at(second + 62))


def problem(store: Store) -> str:
    """Why it cannot write now, empty where it can."""
    return store.problem or ""


class Keep:
    """Everything for ever."""

    step_metrics_days = samples_days = five_minutes_days = hours_days = incidents_days = 100_000.0
    database_limit_mb = 100_000.0


@pytest.mark.slow
@pytest.mark.mounts
def test_a_record_on_a_read_only_file_system_is_read_and_waits(small_disk: Path) -> None:
    first = open_store(small_disk)
    record_everything(first)
    first.close(at(70))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = open_store(small_disk, at(80))
    assert problem(store)
    assert store.load_jobs(at(80)) == (job(),)
    assert store.cursors("night", 1).recorder == {0: 19}
    everything_that_matters(store, 81)
    assert problem(store)
    Archive(store.path).check()
    assert len(Archive(store.path).incidents()) == 1
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    store.flush(at(90))
    assert not problem(store)
    assert rows(store.path, "SELECT count(*) FROM alerts") == [(2,)]
    store.close(at(91))


def test_a_file_that_somebody_locks_is_written_when_they_release_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        everything_that_matters(store, 1)
        assert problem(store)
        assert "locked" in problem(store)
        everything_that_matters(store, 1.5)
        assert store.load_jobs(at(1.5)) == (job(),)
        other.execute("ROLLBACK")
    everything_that_matters(store, 1.9)
    assert problem(store), "it is not tried again at once: each try may take a third of a second"
    store.flush(at(4))
    assert not problem(store)
    assert rows(store.path, "SELECT count(*) FROM alerts") == [(3,)]
    store.close(at(5))


LIMITED = """
import resource, signal, sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from record_by_hand import *
from test_store_troubles import everything_that_matters, rows
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(Path(sys.argv[1]))
everything_that_matters(store, 1)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
for second in (3, 6, 9):
    everything_that_matters(store, second)
print(store.problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
store.flush(at(20))
print(store.problem, rows(store.path, "SELECT count(*) FROM alerts"))
store.close(at(21))
"""


@pytest.mark.slow
def test_an_input_output_error_is_waited_out(tmp_path: Path) -> None:
    """A limit on the size of files makes every write beyond it fail with EFBIG."""
    code = LIMITED.format(tests=str(Path(__file__).parent))
    reported = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    problem, after = reported.stdout.strip().splitlines()
    assert "disk" in problem
    assert after == "None [(4,)]"


def test_a_damaged_file_is_set_aside_and_what_can_be_read_is_copied_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_store(tmp_path)
    record_everything(first)
    for number in range(2, 300):
        with first.turn(at(100 + number)):
            first.record_decision(launch(number))
    first.close(at(500))
    tear(first.path, "decisions")
    store = open_store(tmp_path, at(600), OTHER_BOOT)
    (notice,) = store.notices
    assert "was damaged" in notice
    assert f"supervisor.db.corrupt-{int(at(600).unix_s)}" in notice
    assert (tmp_path / f"supervisor.db.corrupt-{int(at(600).unix_s)}").exists()
    assert [item.name for item in store.load_jobs(at(600))] == ["night"]
    assert store.checkpoints("night") == (checkpoint(3, Verdict.PROVEN),)
    assert store.cursors("night", 1).recorder == {0: 19}
    assert len(Archive(store.path).incidents()) == 1
    assert [experience.helped for experience in store.experience()] == [1]
    kept = int(str(rows(store.path, "SELECT count(*) FROM decisions")[0][0]))
    assert 0 < kept < 299
    assert "store.damaged" in caplog.text
    everything_that_matters(store, 601)
    assert not problem(store)
    store.close(at(602))


def tear(path: Path, table: str, kind: str = "leaf") -> None:
    """Overwrite a page in the middle of a table or index."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY path"
        pages = [row[0] for row in connection.execute(query, (table, kind))]
    with path.open("r+b") as file:
        file.seek((pages[len(pages) // 2] - 1) * size)
        file.write(b"\xa5" * size)


def lay_damaged_record(folder: Path) -> dict[str, int]:
    """Lay a record there with rows in every table and a page of the decisions torn; return its rows by table."""
    first = open_store(folder)
    record_everything(first)
    for number in range(2, 300):
        with first.turn(at(100 + number)):
            first.record_decision(launch(number))
    first.close(at(500))
    with closing(sqlite3.connect(first.path)) as connection, connection:
        for table in files.SALVAGED:
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            row = [f"{number}" for number, _ in enumerate(columns)]
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    counts = count_rows(first.path)
    tear(first.path, "decisions")
    return counts


def count_rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in files.SALVAGED}


def assert_only_decisions_lack(before: dict[str, int], path: Path) -> None:
    after = count_rows(path)
    assert 0 < after["decisions"] < before["decisions"]
    assert {**after, "decisions": 0} == {**before, "decisions": 0}


def test_every_table_is_copied_from_a_damaged_file(tmp_path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema.TABLES.read_text())
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == set(files.SALVAGED)
    before = lay_damaged_record(tmp_path)
    store = open_store(tmp_path, at(600))
    assert_only_decisions_lack(before, store.path)
    store.close(at(601))


def test_rows_whose_index_is_damaged_are_copied(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    record_everything(first)
    for number in range(2, 300):
        first.queue_alert(alert(f"number {number}"), at(number))
    first.close(at(500))
    before = count_rows(first.path)
    tear(first.path, "sqlite_autoindex_alerts_1", "internal")
    store = open_store(tmp_path, at(600))
    assert "was damaged" in store.notices[0]
    assert count_rows(store.path) == before
    store.close(at(601))


OPEN = (
    f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]\n"
    "from pathlib import Path\nfrom record_by_hand import *\nopen_store(Path(sys.argv[1]), at(600)).close(at(601))\n"
)


def open_until_killed(damaged: Path, at_folder: Path, number: int | None) -> tuple[Path, list[str]]:
    """Open a copy of a record in a process killed at that change of its disk; return its folder and the changes."""
    state = at_folder.with_name(f"{at_folder.name}-state")
    with killing(at_folder, state) as disk:
        shutil.copy(damaged, state)
        with subprocess.Popen([sys.executable, "-c", OPEN, str(disk.at)], cwd=ROOT) as child:
            disk.arm(number, lambda: child.pid)
        return state, disk.disarm()


@pytest.mark.mounts
@pytest.mark.slow
def test_a_process_killed_while_it_replaces_a_damaged_file_loses_no_row_that_can_be_read(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    before = lay_damaged_record(damaged)
    _, changes = open_until_killed(damaged / "supervisor.db", tmp_path / "whole", None)
    assert "rename supervisor.db.renewing" in changes
    renames = [number for number, change in enumerate(changes, start=1) if change.startswith("rename")]
    for number in (len(changes) // 2, *renames):
        state, _ = open_until_killed(damaged / "supervisor.db", tmp_path / f"killed-{number}", number)
        store = open_store(state, at(700), OTHER_BOOT)
        assert_only_decisions_lack(before, store.path)
        store.close(at(701))
        assert [item.name for item in state.glob("*.rene*")] == [], changes[number - 1]
        assert list(state.glob("supervisor.db.corrupt-*[0-9]")), changes[number - 1]


@pytest.mark.mounts
@pytest.mark.slow
def test_a_damaged_file_that_a_full_disk_cannot_hold_twice_stays_until_there_is_room(tmp_path: Path) -> None:
    before = lay_damaged_record(tmp_path / "damaged")
    with mounted(tmp_path / "small", megabytes=2) as small:
        shutil.copy(tmp_path / "damaged" / "supervisor.db", small)
        filler = fill(small)
        os.truncate(filler, filler.stat().st_size - 200_000)
        with pytest.raises(StoreError, match="full"):
            open_store(small, at(600))
        assert [item.name for item in small.iterdir() if item != filler] == ["supervisor.db"]
        filler.unlink()
        store = open_store(small, at(700))
        assert_only_decisions_lack(before, store.path)
        store.close(at(701))


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "supervisor.db").write_bytes(b"this is not a database, and long enough to be read as one" * 100)
    store = open_store(tmp_path)
    assert "not a database" in store.notices[0]
    everything_that_matters(store, 1)
    assert not problem(store)
    store.close(at(1))


def test_a_file_damaged_while_it_is_open_is_replaced_and_knows_every_job(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    everything_that_matters(store, 1)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with store.path.open("r+b") as file:
        file.write(b"\xa5" * store.path.stat().st_size)
    with store.turn(at(5)):
        store.record_decision(stop())
    assert not problem(store)
    assert list(tmp_path.glob("supervisor.db.corrupt-*"))
    assert store.load_jobs(at(5)) == (job(),)
    store.close(at(6))


def test_a_file_deleted_while_it_is_open_is_made_again_and_knows_every_job(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    everything_that_matters(first, 1)
    first.close(at(1))
    store = open_store(tmp_path)
    store.load_jobs(at(1))
    for name in ("supervisor.db", "supervisor.db-wal", "supervisor.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    store.flush(at(2))
    assert not problem(store)
    assert [item.name for item in Archive(store.path).jobs()] == ["night"]
    everything_that_matters(store, 3)
    assert len(Archive(store.path).incidents()) == 1
    store.close(at(4))


def test_a_file_in_whose_place_is_a_link_to_itself_is_a_problem_until_the_link_is_gone(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    everything_that_matters(first, 1)
    first.close(at(1))
    store = open_store(tmp_path)
    store.load_jobs(at(1))
    store.path.unlink()
    store.path.symlink_to(store.path.name)
    everything_that_matters(store, 2)
    assert "cannot be opened" in problem(store)
    store.path.unlink()
    everything_that_matters(store, 10)
    assert not problem(store)
    archive = Archive(store.path)
    assert ([item.name for item in archive.jobs()], len(archive.incidents())) == (["night"], 1)
    store.close(at(11))


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("name", ["supervisor.db", "supervisor.db-wal"])
def test_what_is_no_file_in_its_place_while_it_is_open_keeps_no_query_and_no_commit_waiting(
    tmp_path: Path, kind: str, name: str
) -> None:
    store = open_store(tmp_path)
    everything_that_matters(store, 1)
    place = tmp_path / name
    place.rename(tmp_path / "moved")
    os.mkfifo(place) if kind == "pipe" else place.mkdir()
    archive, answers = Archive(store.path), list[object]()

    def ask() -> None:
        for asked in (lambda: store.checkpoints("night"), archive.jobs, lambda: everything_that_matters(store, 3)):
            try:
                answers.append(asked())
            except (StoreError, ArchiveError) as error:
                answers.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(30)
    assert len(answers) == 3, "it waits for whoever writes into the pipe"
    if not place.is_file():  # SQLite removes a pipe in the place of a -wal file, once what that held is in the database
        assert "is no file" in problem(store)
        place.unlink() if kind == "pipe" else place.rmdir()
        (tmp_path / "moved").rename(place)
    everything_that_matters(store, 10)
    assert not problem(store)
    assert [item.name for item in Archive(store.path).jobs()] == ["night"]
    store.close(at(11))


def test_a_wal_file_deleted_while_it_is_open_loses_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    everything_that_matters(store, 1)
    (tmp_path / "supervisor.db-wal").unlink()
    everything_that_matters(store, 2)
    assert not problem(store)
    # As one that reads it now does, and the next daemon after this one was killed.
    assert rows(store.path, "SELECT count(*) FROM alerts") == [(2,)]
    everything_that_matters(store, 3)
    assert rows(store.path, "SELECT count(*) FROM alerts") == [(3,)]
    assert list(tmp_path.glob("supervisor.db.corrupt-*")) == []
    store.close(at(4))


def test_a_wal_file_cut_while_it_is_open_is_found_by_a_query_and_the_jobs_are_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_store(tmp_path)
    record_everything(first)
    first.close(at(1))
    store = open_store(tmp_path, at(100))
    store.load_jobs(at(100))
    store.commit_beside(lambda commit: commit())
    everything_that_matters(store, 101)
    os.truncate(tmp_path / "supervisor.db-wal", 0)
    store.last_written_unix_s()
    assert "store.unreadable" in caplog.text
    everything_that_matters(store, 103)
    assert not problem(store)
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("supervisor.db", "supervisor.db-wal"):
        shutil.copy(tmp_path / name, killed)
    after = open_store(killed, at(200), OTHER_BOOT)
    assert [item.name for item in after.load_jobs(at(200))] == ["night"]
    assert rows(after.path, f"SELECT count(*) FROM alerts WHERE queued_unix_s = {at(103).unix_s}") == [(1,)]
    after.close(at(201))
    store.close(at(104))


def test_a_file_put_in_its_place_while_it_is_open_is_looked_at_before_it_is_written(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    everything_that_matters(store, 1)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = foreign.read_bytes()
    for name in ("supervisor.db-wal", "supervisor.db-shm"):
        (tmp_path / name).unlink()
    foreign.replace(store.path)
    for second in (2, 5, 8):
        everything_that_matters(store, second)
        assert "bookmarks" in problem(store)
    assert store.path.read_bytes() == before
    store.path.unlink()
    store.flush(at(12))
    assert not problem(store)
    assert rows(store.path, "SELECT count(*) FROM alerts") == [(3,)]
    store.close(at(13))


def test_a_row_that_no_database_takes_is_dropped_and_the_others_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    with store.turn(at(1)):
        store.save_offsets("night", 1, output_bytes=2**70)
        store.save_job(job())
        store.save_offsets("night", 2, output_bytes=5)
    assert not problem(store)
    assert store.load_jobs(at(1)) == (job(),)
    store.close(at(2))
    assert open_store(tmp_path).cursors("night", 2).output_bytes == 5
    assert "store.row_dropped" in caplog.text


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        everything_that_matters(store, 1)
        for number in range(3000):
            store.add_gpu_samples([gpu(number)])
        everything_that_matters(store, 2)
        other.execute("ROLLBACK")
    store.flush(at(10))
    found = rows(store.path, "SELECT count(*), min(at_unix_s) FROM gpu_samples")
    assert found == [(2000, at(1000).unix_s)]
    assert rows(store.path, "SELECT count(*) FROM alerts") == [(2,)]
    store.close(at(11))


def test_a_place_that_cannot_hold_the_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="check the rights"):
        Store.open(f"sqlite:///{tmp_path}/file/supervisor.db", START, "boot")


@pytest.mark.slow
def test_a_process_killed_in_a_commit_leaves_a_sound_file(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]\n"
        "from pathlib import Path\nfrom record_by_hand import *\n"
        "from test_store_troubles import everything_that_matters\n"
        "store = open_store(Path(sys.argv[1]))\n"
        "for second in range(10**6):\n    everything_that_matters(store, second)\n    print(second, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    reported = [int(child.stdout.readline()) for _ in range(25)][-1]
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    store = open_store(tmp_path)
    assert store.notices == ()
    alerts, decisions = (
        int(str(rows(store.path, f"SELECT count(*) FROM {table}")[0][0])) for table in ("alerts", "decisions")
    )
    assert alerts == decisions >= reported + 1
    store.close(START)
