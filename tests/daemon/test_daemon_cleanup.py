"""What old attempts leave on the disk is bounded; what somebody may still look at stays."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from supervisor.daemon.cleanup import (
    ATTEMPTS_KEPT,
    DAY_S,
    RECORDERS_KEPT,
    clear_code,
    clear_replays,
    clear_snapshots,
    make_room,
    sweep,
)
from supervisor.runner.code_copy import CodeCopies

NOW = 2_000_000_000.0


def attempt(state: Path, number: int, age_days: float) -> Path:
    folder = state / "jobs" / "night" / str(number)
    (folder / "evidence" / f"night-{number}").mkdir(parents=True)
    (folder / "run").mkdir()
    (folder / "run" / "recorder.bin").write_bytes(b"r")
    (folder / "run" / "recorder.rank1.bin").write_bytes(b"r")
    for item in (folder / "run", folder):
        os.utime(item, (NOW - age_days * DAY_S, NOW - age_days * DAY_S))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [attempt(tmp_path, number, age_days=100 - number) for number in range(1, RECORDERS_KEPT + 4)]
    (tmp_path / "jobs" / "night" / "current").symlink_to(made[-1].name)
    return made


def test_old_recorders_go_and_their_evidence_stays(tmp_path: Path, folders: list[Path]) -> None:
    assert sweep(tmp_path / "jobs/night", 3650, NOW) == 2 * 3
    assert [(folder / "run" / "recorder.bin").exists() for folder in folders] == [False] * 3 + [True] * RECORDERS_KEPT
    assert all((folder / "evidence").is_dir() for folder in folders)
    assert sweep(tmp_path / "jobs/night", 3650, NOW) == 0


def test_folders_past_their_time_go_but_never_the_newest(tmp_path: Path, folders: list[Path]) -> None:
    sweep(tmp_path / "jobs/night", 1, NOW)
    assert [folder.exists() for folder in folders] == [False] * (len(folders) - 1) + [True]


def test_no_state_yet_is_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep(tmp_path / "jobs/night", 1, NOW) == 0


def test_snapshots_of_a_finished_training_go_with_what_was_left_half_written(tmp_path: Path) -> None:
    for name in ("step-000000000007.pt", "step-000000000008.pt.12.part", "theirs.txt"):
        (tmp_path / name).touch()
    clear_snapshots(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.txt"]


def test_a_storm_of_restarts_is_bounded_at_each_launch(tmp_path: Path) -> None:
    """Ten minutes of restarts once took 5 GB before the hourly sweep came round."""
    job = tmp_path / "jobs" / "night"
    for number in range(1, ATTEMPTS_KEPT + 60):
        make_room(job)
        attempt(tmp_path, number, age_days=0)
        if number % 20 == 0:
            recorders = sorted(job.glob("*/run/recorder.bin"))
            assert len(recorders) <= RECORDERS_KEPT
    kept = sorted(int(path.name) for path in job.iterdir())
    assert kept == list(range(60, ATTEMPTS_KEPT + 60))


def test_a_launch_goes_on_while_the_folders_of_a_triage_are_removed(tmp_path: Path) -> None:
    """They are removed in a thread of their own, while the next attempt is launched."""
    replays = [tmp_path / f"triage-1-replay{number}" for number in range(300)]
    (tmp_path / "1" / "run").mkdir(parents=True)
    for replay in replays:
        replay.mkdir()
    remover = threading.Thread(target=clear_replays, args=[tmp_path])
    remover.start()
    while remover.is_alive():
        assert make_room(tmp_path) == 0
    assert not any(replay.exists() for replay in replays)


def test_making_room_for_a_first_attempt_finds_nothing(tmp_path: Path) -> None:
    assert make_room(tmp_path / "jobs" / "night") == 0
    attempt(tmp_path, 1, age_days=0)
    assert make_room(tmp_path / "jobs" / "night") == 0


@pytest.mark.parametrize("name", ["3", "triage-3-again"])
def test_the_code_of_an_earlier_version_stays_as_long_as_something_runs_it(tmp_path: Path, name: str) -> None:
    copies, living = CodeCopies(tmp_path), tmp_path / "jobs" / "night" / name
    old = copies.current().root.with_name("of-an-earlier-version")
    old.mkdir()
    living.mkdir(parents=True)
    (living / "code").symlink_to(old)
    (living.with_name("2")).mkdir()
    (living.with_name("2") / "code").symlink_to(old)
    assert clear_code(copies, tmp_path, lambda slot, folder: (slot, folder) == ("night", living)) == 0
    assert old.is_dir()
    assert clear_code(copies, tmp_path, lambda _slot, _folder: False) == 1
    assert not old.exists()
    assert copies.current().root.is_dir()


def test_the_code_of_what_stands_by_stays(tmp_path: Path) -> None:
    copies, waiting = CodeCopies(tmp_path), tmp_path / "jobs" / "night" / "standby-4"
    old = copies.current().root.with_name("of-an-earlier-version")
    old.mkdir()
    (waiting / "run").mkdir(parents=True)
    (waiting / "code").symlink_to(old)
    os.mkfifo(waiting / "run" / "door")
    door = os.open(waiting / "run" / "door", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert clear_code(copies, tmp_path, lambda _slot, _folder: False) == 0
    finally:
        os.close(door)
    assert clear_code(copies, tmp_path, lambda _slot, _folder: False) == 1
