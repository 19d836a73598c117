"""The parts of one daemon together: what they see of each other, and whether the machine allows a start."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from clocks_by_hand import until

from supervisor.config.settings import JobSettings, Settings, SupervisorSettings
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.job import Job, Phase
from supervisor.core.readings import DiskReading, HostReading
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.inbox import Inquiry
from supervisor.daemon.job_state import JobState
from supervisor.daemon.process.systemd import Notifier
from supervisor.daemon.service import Service
from supervisor.daemon.wiring import Assembly
from supervisor.runner.direct import DirectLauncher

GB = 10**9


def with_limit(settings: Settings, limit_bytes: int) -> Settings:
    jobs = {"yolo": JobSettings(command=["true"], rules={"disk_low": {"limit_bytes": limit_bytes}})}
    return msgspec.structs.replace(settings, jobs=jobs)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Assembly]:
    settings = with_limit(Settings(supervisor=SupervisorSettings(state_dir=str(tmp_path))), 2 * GB)
    made = Assembly(settings, SystemClock(), "boot", DirectLauncher(), None)
    yield made
    made.exits.close()
    made.gpus.close()
    made.store.close(made.clock.now())


def disk(parts: Assembly, free_bytes: int, free_inodes: int | None = None) -> None:
    now = parts.clock.now()
    total = None if free_inodes is None else 10**6
    disks = (
        DiskReading(path="/", free_bytes=free_bytes, total_bytes=10 * GB, free_inodes=free_inodes, total_inodes=total),
    )
    parts.newest.take(ev.HostRead(at=now, reading=HostReading(at=now, disks=disks)))


def test_a_full_disk_forbids_a_launch_until_there_is_room(parts: Assembly) -> None:
    assert parts.may_launch()
    disk(parts, 2 * GB - 1)
    assert not parts.may_launch()
    disk(parts, 2 * GB)
    assert parts.may_launch()
    disk(parts, 2 * GB, free_inodes=99)
    assert not parts.may_launch()
    disk(parts, 2 * GB, free_inodes=100)
    assert parts.may_launch()


def test_the_limit_is_the_one_of_the_settings_in_force(parts: Assembly) -> None:
    disk(parts, GB)
    assert not parts.may_launch()
    parts.settings = with_limit(parts.settings, GB)
    assert parts.may_launch()
    parts.settings = with_limit(parts.settings, 3 * GB)
    assert not parts.may_launch()


def test_alerts_see_the_trainings_as_the_loop_has_them(parts: Assembly) -> None:
    job = Job(name="night", since=parts.clock.now(), phase=Phase.FAILED)
    assert list(parts.announcer.jobs()) == []
    parts.loop.job_states["night"] = JobState(job=job, rules=())
    assert list(parts.announcer.jobs()) == [job]


def test_the_end_of_a_commit_wakes_the_deciding_thread_where_rows_wait_for_the_next(parts: Assembly) -> None:
    parts.commits.begin()
    let = threading.Event()
    parts.commits.change("being slow", lambda: let.wait(60))
    for phase in (Phase.RUNNING, Phase.FINISHED):
        now = parts.clock.now()
        with parts.store.turn(now):
            parts.store.save_job(Job(name="night", since=now, phase=phase))
    let.set()
    entry = parts.inbox.get(60)
    assert isinstance(entry, Inquiry), "no turn is needed for it"
    entry.question()
    assert parts.store.await_urgent(60)
    assert [job.phase for job in parts.store.load_jobs(parts.clock.now())] == [Phase.FINISHED]


def test_the_hourly_sweep_prunes_checkpoints_that_are_gone_from_the_record(parts: Assembly, tmp_path: Path) -> None:
    old = parts.clock.now().plus(-1000 * 86400.0)
    kept = tmp_path / "kept.pt"
    kept.write_bytes(b"saved")
    gone = Fingerprint(size_bytes=5, modified_ns=1, inode=1)
    with parts.store.turn(old):
        for path in (kept, tmp_path / "gone.pt"):
            parts.store.save_checkpoint("yolo", 1, Checkpoint(path=str(path), fingerprint=gone), old)
    parts.commits.begin()
    service = Service(parts, tmp_path / "config.toml", tmp_path / "control.sock", Notifier.from_environment())
    service._sweep_attempts()
    until(lambda: [item.path for item in parts.store.checkpoints("yolo") or ()] == [str(kept)], "the row to be pruned")
    service._control.stop()
