"""Checkpoints as they are listed: of snapshots those that exist, and those of which nobody knows."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from supervisor.control.checkpoint_list import LOOK_LIMIT_S, listed
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from tests.rigs.hanging_fs import hanging


def snapshot(path: Path) -> Checkpoint:
    return Checkpoint(path=str(path), kind="snapshot", fingerprint=Fingerprint(size_bytes=3, modified_ns=4, inode=5))


def names(*paths: Path, limit_s: float = LOOK_LIMIT_S) -> list[str]:
    return [Path(entry.path).name for entry in listed([snapshot(path) for path in paths], limit_s)]


@pytest.mark.slow
def test_a_snapshot_that_is_gone_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "there.pt").write_bytes(b"123")
    paths = (tmp_path / "there.pt", tmp_path / "gone.pt", tmp_path / "there.pt" / "never.pt")
    assert names(*paths, limit_s=60.0) == ["there.pt"]


@pytest.mark.slow
@pytest.mark.mounts
def test_snapshots_on_a_file_system_that_does_not_answer_are_listed_and_hold_no_request(tmp_path: Path) -> None:
    """Each request waited in a thread of the server, which has forty."""
    found: list[list[str]] = []
    with hanging(tmp_path / "far", tmp_path / "behind") as far:
        far.hang()
        for _ in range(3):
            asking = threading.Thread(target=lambda: found.append(names(far.at / "one.pt", far.at / "two.pt")))
            asking.start()
            asking.join(30)
            assert not asking.is_alive()
    assert found == [["one.pt", "two.pt"]] * 3
