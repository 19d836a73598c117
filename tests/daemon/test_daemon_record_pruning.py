"""What the record knows of checkpoints goes with their files, and never before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict
from supervisor.core.decisions import Launch
from supervisor.core.moments import Moment
from supervisor.daemon.checkpoints.record_pruning import CHECKED_AT_ONCE, RecordPruner, is_gone
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.store.archive import Archive
from supervisor.store.store import Store

DAY_S = 86400.0
START = Moment(monotonic_s=1000.0, unix_s=1_700_000_000.0)
LATER = START.plus(100 * DAY_S)


class World:
    """A store with one job's checkpoints, and the files that are left of them."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "runs"
        self.folder.mkdir()
        self.store = Store.open(f"sqlite:///{tmp_path / 'supervisor.db'}", START, "boot-1")
        self.archive = Archive(self.store.path)
        self.pruner = RecordPruner(self.archive, self.forget)

    def forget(self, job: str, gone: tuple[Checkpoint, ...]) -> None:
        self.store.forget_checkpoints(job, gone)

    def write(self, name: str, written: int, source: str | None = None) -> Checkpoint:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(written))
        os.utime(path, ns=(0, 10**18 + written))
        return Checkpoint(path=str(path), fingerprint=fingerprint_of(path), verdict=Verdict.PROVEN, source=source)

    def save(self, name: str, written: int, at: Moment = START, source: str | None = None) -> Checkpoint:
        """Write a file and record it."""
        checkpoint = self.write(name, written, source)
        self.record(checkpoint, at)
        return checkpoint

    def record(self, checkpoint: Checkpoint, at: Moment = START) -> None:
        with self.store.turn(at):
            self.store.save_checkpoint("night", 1, checkpoint, at)

    def prune(self) -> None:
        self.pruner.prune("night", LATER.unix_s - 90 * DAY_S)

    @property
    def known(self) -> list[str]:
        """Name and size of every checkpoint in the record."""
        found = self.store.checkpoints("night")
        assert found is not None
        return sorted(f"{Path(item.path).name} {item.fingerprint.size_bytes}" for item in found)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_removed_file_leaves_the_record_once_it_is_old(world: World) -> None:
    for name, at in (("old.pt", START), ("young.pt", LATER)):
        Path(world.save(name, 1, at).path).unlink()
    world.save("there.pt", 2)
    world.prune()
    assert world.known == ["there.pt 2", "young.pt 1"]


def test_of_a_file_that_is_overwritten_the_present_content_and_the_newest_row_stay(world: World) -> None:
    for written in (1, 2, 3):
        world.save("last.pt", written)
    world.prune()
    assert world.known == ["last.pt 3"]
    world.write("last.pt", 4)
    world.prune()
    assert world.known == ["last.pt 3"], "its newest content is not in the record yet"


def test_what_an_attempt_was_resumed_from_stays(world: World) -> None:
    used = world.save("used.pt", 1)
    Path(used.path).unlink()
    with world.store.turn(START):
        world.store.open_attempt(Launch(at=START, job="night", attempt=2, resume_from=used, reason="start"), "folder")
    world.prune()
    assert world.known == ["used.pt 1"]


def test_a_pruned_generation_stays_as_long_as_the_file_that_it_was_captured_from(world: World) -> None:
    own = world.save("last.pt", 1)
    generation = world.save("generation.pt", 1, source=own.path)
    Path(generation.path).unlink()
    world.prune()
    assert world.known == ["generation.pt 1", "last.pt 1"], "its verdict holds for the file"
    Path(own.path).unlink()
    world.prune()
    assert world.known == []


def test_a_missing_folder_may_be_a_file_system_that_is_not_mounted(world: World) -> None:
    for written in (1, 2):
        last = world.save("disk/last.pt", written)
    Path(last.path).unlink()
    Path(last.path).parent.rmdir()
    world.prune()
    assert world.known == ["last.pt 2"]


def test_a_path_that_cannot_be_looked_at_is_not_gone(world: World) -> None:
    item = world.write("item.pt", 1)
    loop = world.folder / "loop.pt"
    loop.symlink_to(loop)
    hidden = Checkpoint(path=str(loop), fingerprint=item.fingerprint)
    assert not is_gone(hidden, has_newer=True)


def test_many_rows_are_looked_at_in_several_calls(world: World) -> None:
    kept = world.write("kept.pt", 1)
    with world.store.turn(START):
        for number in range(CHECKED_AT_ONCE + 1):
            os.link(kept.path, world.folder / f"{number:06d}.pt")
            path = str(world.folder / f"{number:06d}.pt")
            known = Checkpoint(path=path, fingerprint=kept.fingerprint)
            world.store.save_checkpoint("night", 1, known, START)
    Path(path).unlink()
    world.prune()
    assert len(world.known) == CHECKED_AT_ONCE + 1
    world.prune()
    assert len(world.known) == CHECKED_AT_ONCE
    (world.folder / "000000.pt").unlink()
    world.prune()
    assert len(world.known) == CHECKED_AT_ONCE - 1, "after the last row it begins with the first"
