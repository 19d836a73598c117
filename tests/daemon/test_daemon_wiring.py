"""The parts of one daemon together: what they see of each other, and whether the machine allows a start."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from clocks_by_hand import until

from supervisor.config.settings import JobSettings, Settings, SupervisorSettings
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.job import Job, Phase
from supervisor.core.readings import DiskReading, HostReading
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.inbox import Inquiry
from supervisor.daemon.job_state import JobState, begin_history
from supervisor.daemon.process.systemd import Notifier
from supervisor.daemon.service import Service
from supervisor.daemon.status import job_status
from supervisor.daemon.wiring import Assembly
from supervisor.runner.direct import DirectLauncher
from supervisor.runner.launcher import LaunchError

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
        DiskReading(
            path=str(parts.state),
            free_bytes=free_bytes,
            total_bytes=10 * GB,
            free_inodes=free_inodes,
            total_inodes=total,
        ),
    )
    parts.newest.take(ev.HostRead(at=now, reading=HostReading(at=now, disks=disks)))


def may_launch(parts: Assembly, job: str = "yolo") -> bool:
    states = parts.loop.job_states
    return parts.disk_room.may_launch(
        states.get(job) or parts.add(job, parts.settings.jobs[job], None, parts.clock.now())
    )


def test_the_full_disk_of_one_job_keeps_no_other_from_its_launch(parts: Assembly) -> None:
    """Nor is another stopped for it, as its rule has no reading of that disk."""
    now = parts.clock.now()
    limit = {"disk_low": {"limit_bytes": 2 * GB}}
    for name, cwd in (("small", "/small"), ("large", "/large"), ("careless", "/small")):
        rules = {"disk_low": {"enabled": False}} if name == "careless" else limit
        parts.settings.jobs[name] = JobSettings(command=["true"], cwd=cwd, rules=rules)
    parts.settings = msgspec.structs.replace(parts.settings)
    for name in ("small", "large", "careless"):
        parts.add(name, parts.settings.jobs[name], None, now)
    free = {str(parts.state): 9 * GB, "/small": GB, "/large": 9 * GB}
    disks = tuple(DiskReading(path=path, free_bytes=room, total_bytes=10 * GB) for path, room in free.items())
    parts.newest.take(ev.HostRead(at=now, reading=HostReading(at=now, disks=disks)))
    assert [may_launch(parts, name) for name in ("small", "large", "careless")] == [False, True, True]
    held = job_status(parts.loop.job_states["small"], now)
    assert held.reason == "not launched: /small: 1.00 of 10.00 GB are free, too little for a launch"
    assert job_status(parts.loop.job_states["large"], now).reason is None
    history = begin_history(parts.loop.job_states["large"], now, now)
    history.add(ev.HostRead(at=now, reading=HostReading(at=now, disks=disks)))
    assert {disk.path for disk in history.host[-1].disks} == {str(parts.state), "/large"} == set(history.disks_used)


def test_a_full_disk_forbids_a_launch_until_there_is_room(parts: Assembly) -> None:
    assert may_launch(parts)
    disk(parts, 2 * GB - 1)
    assert not may_launch(parts)
    disk(parts, 2 * GB)
    assert may_launch(parts)
    disk(parts, 2 * GB, free_inodes=99)
    assert not may_launch(parts)
    disk(parts, 2 * GB, free_inodes=100)
    assert may_launch(parts)


def test_the_limit_is_the_one_of_the_settings_in_force(parts: Assembly) -> None:
    disk(parts, GB)
    assert not may_launch(parts)
    parts.settings = with_limit(parts.settings, GB)
    assert may_launch(parts)
    parts.settings = with_limit(parts.settings, 3 * GB)
    assert not may_launch(parts)


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


class NeverLaunches(DirectLauncher):
    """As where a file system that a launch looks at does not answer, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def launch(self, job: str, attempt: Path) -> None:
        self.entered.set()
        self.released.wait(60)
        raise LaunchError(f"{job}: {attempt} was not launched")


def test_a_launch_that_does_not_come_to_its_end_is_reported(tmp_path: Path) -> None:
    """Its job would be starting without an end, and nothing would say what it waits for."""
    launcher = NeverLaunches()
    settings = with_limit(Settings(supervisor=SupervisorSettings(state_dir=str(tmp_path))), 0)
    parts = Assembly(settings, SystemClock(), "boot", launcher, None)
    now = parts.clock.now()
    job = parts.add("yolo", settings.jobs["yolo"], None, now).job
    launch = de.Launch(at=now, job="yolo", attempt=1, resume_from=None, reason="start")
    parts.executor.act(launch, job, None)
    assert launcher.entered.wait(60)
    (post,) = (item for item in parts.threads.posts() if item.at == "launch")
    assert (post.job, post.overdue(now.plus(30)), post.overdue(now.plus(600))) == ("yolo", False, True)
    launcher.released.set()
    parts.exits.close()
    parts.gpus.close()
    parts.store.close(now)
