"""What old attempts leave on the disk is bounded; what somebody may still look at stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.daemon.sweep import DAY_S, RECORDERS_KEPT, clear_snapshots, sweep

NOW = 2_000_000_000.0


def attempt(state: Path, number: int, age_days: float) -> Path:
    folder = state / "jobs" / "night" / str(number)
    (folder / "evidence" / f"night-{number}").mkdir(parents=True)
    (folder / "recorder.bin").write_bytes(b"r")
    (folder / "recorder.rank1.bin").write_bytes(b"r")
    os.utime(folder, (NOW - age_days * DAY_S, NOW - age_days * DAY_S))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [attempt(tmp_path, number, age_days=100 - number) for number in range(1, RECORDERS_KEPT + 4)]
    (tmp_path / "jobs" / "night" / "current").symlink_to(made[-1].name)
    return made


def test_old_recorders_go_and_their_evidence_stays(tmp_path: Path, folders: list[Path]) -> None:
    assert sweep(tmp_path, 3650, NOW) == 2 * 3
    assert [(one / "recorder.bin").exists() for one in folders] == [False] * 3 + [True] * RECORDERS_KEPT
    assert all((one / "evidence").is_dir() for one in folders)
    assert sweep(tmp_path, 3650, NOW) == 0


def test_folders_past_their_time_go_but_never_the_newest(tmp_path: Path, folders: list[Path]) -> None:
    sweep(tmp_path, 1, NOW)
    assert [one.exists() for one in folders] == [False] * (len(folders) - 1) + [True]


def test_no_state_yet_is_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep(tmp_path, 1, NOW) == 0


def test_snapshots_of_a_finished_training_go_with_what_was_left_half_written(tmp_path: Path) -> None:
    for name in ("step-000000000007.pt", "step-000000000008.pt.12.part", "theirs.txt"):
        (tmp_path / name).touch()
    clear_snapshots(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["theirs.txt"]
