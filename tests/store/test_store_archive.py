"""The record is read while the daemon writes it and when there is no daemon, and nothing in it is changed by that."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from record_by_hand import START, at, checkpoint, gpu, host, incident, job, launch, made, open_store, record_everything

from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.store import files
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    store = open_store(tmp_path)
    record_everything(store)
    with store.turn(at(95)):
        store.record_decision(launch(2))
    store.close(at(95))
    return Archive(store.path)


def test_an_incident_is_reported_with_its_flags_decisions_and_what_came_after(archive: Archive) -> None:
    story = archive.incident("night-1")
    assert story is not None
    assert story.incident == incident()
    assert [(flag.rule, flag.severity) for flag in story.flags] == [("stall", "critical")]
    assert [(decision.kind, decision.attempt) for decision in story.decisions] == [
        ("launch", 1),
        ("stop", 1),
        ("launch", 2),
    ]
    assert archive.incident("night-99") is None
    assert archive.incidents("day") == ()
    assert archive.incidents("night") == (incident(),)


def test_every_table_can_be_asked(archive: Archive) -> None:
    assert archive.jobs() == (job(),)
    (attempt,) = archive.attempts("night")
    assert (attempt.number, attempt.exit_signal, attempt.resume_step, attempt.last_step) == (1, 9, 300, 19)
    (known,) = archive.checkpoints("night")
    assert (known.checkpoint, known.attempt) == (checkpoint(3, Verdict.PROVEN), 1)
    assert sorted(sample.source for sample in archive.gpu_samples()) == ["rocm-smi", "sysfs"]
    assert [(item.name, item.vram_total_bytes) for item in archive.gpus()] == [("Radeon RX 5600 XT", 6_425_673_728)]
    disk = {"path": "/runs", "free_bytes": 10**11, "total_bytes": 10**12, "free_inodes": None, "total_inodes": None}
    assert archive.host_samples()[0].disks == [disk]
    assert [sample.uninterruptible for sample in archive.process_samples("night")] == [1]
    assert [event.kind for event in archive.events("night")] == ["launched"]
    assert [decision.kind for decision in archive.decisions("night")] == ["launch", "stop", "launch"]
    assert [flag.message for flag in archive.flags("night")] == ["no step for 41 s, limit 30 s"]
    assert [alert.state for alert in archive.alerts()] == ["waiting"]


def test_samples_come_in_the_order_of_time_and_the_newest_where_there_are_many(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for second in range(10):
        store.add_gpu_samples([gpu(second), gpu(second, address="0000:0b:00.0")])
        store.add_host_sample(host(second))
    store.close(START)
    archive = Archive(store.path)
    assert [sample.at_unix_s for sample in archive.gpu_samples("0000:0b:00.0", limit=3)] == [
        at(second).unix_s for second in (7, 8, 9)
    ]
    assert len(archive.gpu_samples(since_unix_s=at(2).unix_s, until_unix_s=at(4).unix_s)) == 4
    assert len(archive.host_samples(since_unix_s=at(8).unix_s)) == 2


def test_new_events_can_be_followed(archive: Archive) -> None:
    (first,) = archive.events()
    assert archive.events(after_id=first.id) == ()
    assert archive.events(after_id=first.id - 1) == (first,)


def test_reading_goes_on_while_the_daemon_writes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    archive, ended, seen = Archive(store.path), threading.Event(), []

    def read() -> None:
        while not ended.is_set():
            seen.append(sum(metric.steps for metric in archive.step_metrics("night")))

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(1, 300):
        with store.turn(at(step)):
            store.add_steps(made([step], cursor=step))
            store.save_job(job())
    ended.set()
    reader.join()
    assert store.problem is None
    assert seen == sorted(seen)
    assert sum(metric.steps for metric in archive.step_metrics("night")) == 299
    store.close(START)


def test_reading_changes_nothing(archive: Archive) -> None:
    before = archive.path.read_bytes()
    archive.check()
    archive.jobs()
    archive.step_metrics("night")
    assert archive.path.read_bytes() == before
    log = archive.path.with_name("supervisor.db-wal")
    assert not log.exists() or log.stat().st_size == 0
    with closing(files.open_reader(archive.path)) as connection, pytest.raises(sqlite3.Error, match="readonly"):
        connection.execute("DELETE FROM jobs")


def test_no_file_and_no_database_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="does not exist"):
        Archive(tmp_path / "none.db").check()
    with pytest.raises(ArchiveError, match="does not exist"):
        Archive(tmp_path / "none.db").jobs()
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("hello " * 1000)
    with pytest.raises(ArchiveError, match="cannot be read"):
        Archive(tmp_path / "text.db").check()
    (tmp_path / "empty.db").touch()
    with pytest.raises(ArchiveError, match="recorded nothing"):
        Archive(tmp_path / "empty.db").check()
    with pytest.raises(ArchiveError, match="not supported"):
        Archive.at("postgresql://db/x")


def test_a_copy_holds_everything_and_replaces_the_last_one_completely(archive: Archive, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_bytes(b"yesterday's")
    files.copy(archive.path, target)
    copy = Archive(target)
    copy.check()
    assert copy.jobs() == archive.jobs()
    assert copy.incidents() == archive.incidents()
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(sqlite3.Error, match="unable to open"):
        files.copy(archive.path, tmp_path / "no such folder" / "copy.db")


def test_a_copy_can_be_made_while_the_daemon_writes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    record_everything(store)
    store.flush(at(99))
    files.copy(store.path, tmp_path / "copy.db")
    with store.turn(at(100)):
        store.record_decision(launch(2))
    assert store.problem is None
    store.close(at(101))
    assert len(Archive(tmp_path / "copy.db").incidents()) == 1


@pytest.mark.slow
def test_one_who_may_only_read_can_read_with_and_without_a_daemon(tmp_path: Path) -> None:
    """Whoever has no right to write the folder cannot make the files that SQLite's WAL mode wants."""
    if os.geteuid() != 0:
        pytest.skip("becoming somebody else needs root")
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o755)
    store = open_store(tmp_path)
    record_everything(store)
    store.path.chmod(0o644)
    assert incidents_as_nobody(store.path) == "1"
    store.close(at(100))
    assert incidents_as_nobody(store.path) == "1"


def incidents_as_nobody(path: Path) -> str:
    code = (
        "import sys\nfrom pathlib import Path\nfrom supervisor.store.archive import Archive\n"
        "import os; os.setgid(65534); os.setuid(65534)\n"
        "print(len(Archive(Path(sys.argv[1])).incidents()))\n"
    )
    reported = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return reported.stdout.strip()


def test_queries_use_the_indices(archive: Archive) -> None:
    with closing(sqlite3.connect(archive.path)) as connection:
        for query in (
            "SELECT * FROM step_metrics WHERE job = 'x' AND rank = 0 AND attempt = 1 ORDER BY bucket_unix_s",
            "SELECT * FROM gpu_samples WHERE at_unix_s >= 5 ORDER BY at_unix_s DESC LIMIT 5",
            "SELECT * FROM incidents ORDER BY opened_unix_s DESC LIMIT 5",
            "SELECT * FROM alerts WHERE state = 'waiting'",
            "SELECT * FROM flags WHERE job = 'x' AND attempt = 2",
        ):
            plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))
            assert "USING" in plan, (query, plan)
            assert "TEMP B-TREE" not in plan, (query, plan)
