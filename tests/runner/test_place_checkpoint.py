"""A checkpoint is put where a training looks for it: whole, at once, and what was there is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.runner import place_checkpoint
from supervisor.runner.place_checkpoint import COULD_NOT


def putting(source: Path, target: Path | str, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "-S", place_checkpoint.__file__, str(source), str(target), "--", *command]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def chosen(tmp_path: Path) -> Path:
    path = tmp_path / "generations" / "000001" / "ckpt.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"proven")
    os.utime(path, ns=(1_700_000_000_000_000_000, 1_700_000_000_000_000_000))
    return path


def test_the_chosen_one_is_there_before_the_command_and_the_newer_one_next_to_it(tmp_path: Path, chosen: Path) -> None:
    target = tmp_path / "out" / "ckpt.pt"
    target.parent.mkdir()
    target.write_bytes(b"newer and not proven")
    done = putting(chosen, "out/ckpt.pt", tmp_path, "cat", "out/ckpt.pt")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("proven")
    assert "kept as out/ckpt.pt.aside-1" in done.stdout
    assert (tmp_path / "out" / "ckpt.pt.aside-1").read_bytes() == b"newer and not proven"
    assert target.stat().st_mtime_ns == chosen.stat().st_mtime_ns
    assert {path.name for path in target.parent.iterdir()} == {"ckpt.pt", "ckpt.pt.aside-1"}


def test_who_may_read_it_is_as_before(tmp_path: Path, chosen: Path) -> None:
    """A generation is closed to others; what a training saves is as open as its user leaves it."""
    chosen.chmod(0o640)
    (tmp_path / "ckpt.pt").write_bytes(b"newer and not proven")
    (tmp_path / "ckpt.pt").chmod(0o604)
    mask = os.umask(0o002)
    try:
        for source, target in ((chosen, "ckpt.pt"), (chosen, "new.pt"), (chosen.parent, "folder")):
            place_checkpoint.put(str(source), str(tmp_path / target))
    finally:
        os.umask(mask)
    paths = ("ckpt.pt", "new.pt", "folder", "folder/ckpt.pt")
    assert [(tmp_path / path).stat().st_mode & 0o777 for path in paths] == [0o604, 0o664, 0o775, 0o664]


def test_each_newer_one_keeps_a_name_of_its_own(tmp_path: Path, chosen: Path) -> None:
    target = tmp_path / "ckpt.pt"
    for content in (b"one", b"two"):
        target.write_bytes(content)
        assert putting(chosen, target, tmp_path, "true").returncode == 0
    assert [(tmp_path / f"ckpt.pt.aside-{number}").read_bytes() for number in (1, 2)] == [b"one", b"two"]


def test_of_what_was_proven_damaged_the_newest_two_are_kept_and_all_else_stays(tmp_path: Path, chosen: Path) -> None:
    """A kill cuts a save of 20 GB short again and again; without a bound its copies would fill the disk."""
    target = tmp_path / "ckpt.pt"
    for number in range(5):
        target.write_bytes(b"half a file" + b"." * number)
        found = target.stat()
        damaged = () if number == 1 else (f"{found.st_size}:{found.st_mtime_ns}", "7:7")
        place_checkpoint.put(str(chosen), str(target), damaged)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("ckpt.pt.*")}
    assert kept == {
        "ckpt.pt.aside-1": b"half a file.",
        "ckpt.pt.damaged.aside-3": b"half a file...",
        "ckpt.pt.damaged.aside-4": b"half a file....",
    }


def test_a_damaged_folder_is_recognised_by_its_files(tmp_path: Path, chosen: Path) -> None:
    target = tmp_path / "ck-9"
    for number in range(4):
        target.mkdir(exist_ok=True)
        (target / "more").write_bytes(b"half" + b"." * number)
        files = [path.stat() for path in target.iterdir()]
        content = f"{sum(info.st_size for info in files)}:{max(info.st_mtime_ns for info in files)}"
        place_checkpoint.put(str(chosen.parent), str(target), (content,))
    assert sorted(path.name for path in tmp_path.glob(".ck-9*")) == [".ck-9.damaged.aside-3", ".ck-9.damaged.aside-4"]


@pytest.mark.parametrize(("verdict", "is_kept"), [("proven", False), ("rejected", True), (None, True)])
@pytest.mark.parametrize("name", ["ckpt.pt", "folder"])
def test_what_a_proven_generation_holds_is_not_kept_twice(
    tmp_path: Path, chosen: Path, name: str, verdict: str | None, is_kept: bool
) -> None:
    if name == "folder":
        chosen = shutil.copytree(chosen.parent, chosen.with_name(name))
    later = tmp_path / "generations" / "000002"
    later.mkdir()
    (later / "generation.json").write_text(json.dumps({"verdict": verdict}))
    target = tmp_path / name
    if name == "folder":
        target.mkdir()
        (target / "ckpt.pt").write_bytes(b"later")
        shutil.copytree(target, later / name)
    else:
        target.write_bytes(b"later")
        shutil.copy2(target, later / name)
    aside = place_checkpoint.put(str(chosen), str(target))
    assert (aside is not None) is is_kept
    assert (target / "ckpt.pt" if name == "folder" else target).read_bytes() == b"proven"
    assert len(list(tmp_path.glob("*.aside-*"))) == is_kept


def test_what_is_there_already_is_left_alone(tmp_path: Path, chosen: Path) -> None:
    target = tmp_path / "ckpt.pt"
    assert putting(chosen, target, tmp_path, "true").returncode == 0
    inode = target.stat().st_ino
    assert putting(chosen, target, tmp_path, "true").returncode == 0
    assert target.stat().st_ino == inode
    assert not list(tmp_path.glob("*.aside-*"))


def test_a_folder_is_put_back_completely(tmp_path: Path, chosen: Path) -> None:
    (chosen.parent / "deeper").mkdir()
    (chosen.parent / "deeper" / "more.bin").write_bytes(b"more")
    target = tmp_path / "out"
    target.mkdir()
    (target / "half").write_bytes(b"half")
    assert putting(chosen.parent, target, tmp_path, "true").returncode == 0
    assert (target / "deeper" / "more.bin").read_bytes() == b"more"
    assert not (target / "half").exists()
    kept = tmp_path / ".out.aside-1"
    assert (kept / "half").read_bytes() == b"half", "hidden from programs that read the number in each folder's name"


def test_a_folder_that_is_there_already_is_left_alone(tmp_path: Path, chosen: Path) -> None:
    target = tmp_path / "checkpoint-40"
    for _ in range(2):
        assert putting(chosen.parent, target, tmp_path, "true").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-40", "generations"}
    (target / "more").write_bytes(b"more")
    assert "kept as" in putting(chosen.parent, target, tmp_path, "true").stdout
    assert not (target / "more").exists()


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path, chosen: Path) -> None:
    """LeRobot's `last`: at the next save it removes the link, and would fail where a folder has taken its place."""
    newer, last = tmp_path / "out" / "000300", tmp_path / "out" / "last"
    newer.mkdir(parents=True)
    (newer / "ckpt.pt").write_bytes(b"newer and not proven")
    last.symlink_to("000300")
    done = putting(chosen.parent, "out/last/", tmp_path, "cat", "out/last/ckpt.pt")
    assert done.stdout.endswith("proven"), done.stderr
    assert f"kept as {newer}" in done.stdout
    assert last.is_symlink()
    assert (newer / "ckpt.pt").read_bytes() == b"newer and not proven"
    again = putting(chosen.parent, "out/last", tmp_path, "true")
    assert "kept as" not in again.stdout, "what it names is the same"
    assert sorted(path.name for path in last.parent.iterdir()) == [".last.placed-1", "000300", "last"]


def test_of_the_folders_behind_a_link_two_are_kept_and_those_that_were_saved_into(tmp_path: Path, chosen: Path) -> None:
    last = tmp_path / "last"
    (tmp_path / "000300").mkdir()
    for number in range(1, 6):
        last.unlink(missing_ok=True)
        last.symlink_to("000300")
        place_checkpoint.put(str(chosen.parent), str(last))
        if number == 2:
            (last / "later.pt").write_bytes(b"saved by the training")
    assert sorted(path.name for path in tmp_path.glob(".last.*")) == [f".last.placed-{number}" for number in (2, 4, 5)]
    assert last.resolve().name == ".last.placed-5"


def test_what_an_interrupted_put_left_is_removed(tmp_path: Path, chosen: Path) -> None:
    (tmp_path / "ckpt.pt.rocm-supervisor-part").write_bytes(b"prov")
    assert putting(chosen, tmp_path / "ckpt.pt", tmp_path, "true").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"ckpt.pt", "generations"}


def test_where_it_cannot_be_put_the_training_is_not_started(tmp_path: Path, chosen: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    done = putting(chosen, tmp_path / "file" / "ckpt.pt", tmp_path, "echo", "started")
    assert done.returncode == COULD_NOT
    assert "the checkpoint could not be written" in done.stderr
    assert "started" not in done.stdout


@pytest.mark.parametrize(
    ("make", "why"), [(Path.mkdir, "is a folder, and the checkpoint is a file"), (os.mkfifo, "is neither a file nor")]
)
def test_what_is_no_checkpoint_keeps_its_name(
    tmp_path: Path, chosen: Path, make: Callable[[Path], object], why: str
) -> None:
    make(tmp_path / "runs")
    kind = (tmp_path / "runs").stat().st_mode
    done = putting(chosen, tmp_path / "runs", tmp_path, "echo", "started")
    assert done.returncode == COULD_NOT
    assert why in done.stderr
    assert (tmp_path / "runs").stat().st_mode == kind
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "generations"}


def test_a_command_that_is_not_there_is_reported(tmp_path: Path, chosen: Path) -> None:
    done = putting(chosen, tmp_path / "ckpt.pt", tmp_path, "/not/there")
    assert done.returncode == COULD_NOT
    assert "command '/not/there' of the job: " in done.stderr
