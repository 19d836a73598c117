"""Folders and files that are closed to the daemon, seen by a user who is not root, and copies of what lies there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.daemon.checkpoints.candidates import Search, find, fingerprint
from supervisor.daemon.checkpoints.existing import FOLDER, PATHS, keep_existing
from supervisor.daemon.checkpoints.unreadable import find_unreadable

NOBODY = 65534


def as_nobody(question: Callable[[], Any]) -> Any:
    """Return the answer of a child that has no right to the test's folders; it must be plain data."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to look as another user")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, json.dumps(question()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


def seen_by_nobody(*patterns: str) -> list[list[str]]:
    """Return what a user without any right to the test's folders cannot look at."""

    def ask() -> list[tuple[str, ...]]:
        found = find_unreadable(patterns, "/")
        return [found.patterns, found.beneath, found.files]

    answer: list[list[str]] = as_nobody(ask)
    return answer


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder that everybody may look at, with a checkpoint in it."""
    for item in (tmp_path, *tmp_path.parents):
        if item == Path("/tmp"):
            break
        item.chmod(0o755)
    folder = tmp_path / "runs"
    (folder / "exp" / "weights").mkdir(parents=True)
    (folder / "exp" / "weights" / "last.pt").write_bytes(b"saved")
    return folder


def test_where_all_is_open_nothing_is_reported(runs: Path) -> None:
    assert seen_by_nobody(f"{runs}/*/weights/*.pt", f"{runs}/**/*.pt", "/not/there/*.pt") == [[], [], []]


@pytest.mark.parametrize("pattern", ["exp/weights/last.pt", "exp/weights/*.pt", "*/weights/*.pt", "*/*/last.pt"])
def test_a_folder_of_mode_0700_is_named_with_what_opens_it(runs: Path, pattern: str) -> None:
    (runs / "exp").chmod(0o700)
    patterns, beneath, files = seen_by_nobody(f"{runs}/{pattern}")
    assert patterns == [f"{runs}/exp is closed to the daemon: `chmod g+rx {runs}/exp`"]
    assert (beneath, files) == ([], [])


def test_a_home_that_is_closed_above_everything_is_named_itself(runs: Path) -> None:
    runs.chmod(0o700)
    assert seen_by_nobody(f"{runs}/exp/weights/*.pt")[0] == [f"{runs} is closed to the daemon: `chmod g+rx {runs}`"]


def test_a_file_of_a_umask_of_077_is_named(runs: Path) -> None:
    path = runs / "exp" / "weights" / "last.pt"
    path.chmod(0o600)
    assert seen_by_nobody(f"{runs}/exp/weights/*.pt") == [
        [],
        [],
        [f"{path} may not be read by the daemon: `chmod g+r {path}`, and a umask of 027"],
    ]


def test_below_two_stars_a_closed_folder_need_not_be_the_trainings(runs: Path) -> None:
    (runs / "lost+found").mkdir(mode=0o700)
    patterns, beneath, _ = seen_by_nobody(f"{runs}/**/*.pt")
    assert patterns == []
    assert beneath == [f"{runs}/lost+found is closed to the daemon: `chmod g+rx {runs}/lost+found`"]


def test_as_root_nothing_is_closed(runs: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, which may look at everything")
    (runs / "exp").chmod(0)
    assert find_unreadable([f"{runs}/**/*.pt", f"{runs}/exp/*"], "/").everything == ()


# --- the search ------------------------------------------------------------------------------------------------------


def searched(pattern: str) -> Search:
    return Search(known=(), globs=(pattern,), cwd="/", fault_unix_s=None, fault_step=None, batches_per_epoch=None)


def test_a_relaunch_that_cannot_look_at_a_pattern_stops_and_says_so(runs: Path) -> None:
    (runs / "exp").chmod(0o700)

    def ask() -> tuple[bool, str]:
        point = find(searched(f"{runs}/exp/weights/*.pt"), _never, lambda _: None)
        return point.possible, point.reason

    possible, reason = as_nobody(ask)
    assert not possible
    assert reason.startswith("checkpoints cannot be read, and a start could overwrite them:")
    assert f"`chmod g+rx {runs}/exp`; then start the job again" in reason


def test_a_pattern_under_which_there_is_nothing_begins_from_the_beginning(runs: Path) -> None:
    assert find(searched(f"{runs}/none/*.pt"), _never, lambda _: None).possible


def _never(path: Path) -> Checkpoint:
    raise AssertionError(f"{path} is proven")


def test_the_step_that_was_known_of_a_file_outlives_its_proof(runs: Path) -> None:
    path = runs / "exp" / "weights" / "last.pt"

    def proven(at: Path) -> Checkpoint:
        stat = fingerprint(at)
        assert isinstance(stat, Fingerprint)
        return Checkpoint(path=str(at), fingerprint=stat, step=9999, verdict=Verdict.PROVEN)

    search = replace(searched(str(path)), step_of=lambda _: 120)
    point = find(search, proven, lambda _: None)
    assert point.checkpoint is not None
    assert point.checkpoint.step == 120


# --- copies of what lies there ----------------------------------------------------------------------------------------


def test_what_lies_there_is_copied_once_and_is_the_daemons_alone(runs: Path, tmp_path: Path) -> None:
    path, job = runs / "exp" / "weights" / "last.pt", tmp_path / "job"
    job.mkdir()
    first = keep_existing(job, 1, [str(path)], limit_bytes=1000, reserve_bytes=0)
    assert (first.copies, first.left_out) == (1, ())
    path.write_bytes(b"overwritten")
    again = keep_existing(job, 2, [str(path)], limit_bytes=1000, reserve_bytes=0)
    assert again.copies == 1
    held = sorted(job.glob(f"{FOLDER}/*/*/last.pt"))
    assert [item.read_bytes() for item in held] == [b"saved", b"overwritten"]
    assert json.loads((job / FOLDER / "1" / PATHS).read_text()) == {"0001": str(path)}
    assert keep_existing(job, 3, [str(path)], limit_bytes=1000, reserve_bytes=0).copies == 1
    assert not (job / FOLDER / "3").exists()
    assert (job / FOLDER).stat().st_mode & 0o777 == 0o700


def test_what_finds_no_room_or_is_a_link_is_left_out_and_named(runs: Path, tmp_path: Path) -> None:
    path, job = runs / "exp" / "weights" / "last.pt", tmp_path / "job"
    job.mkdir()
    link = runs / "link.pt"
    link.symlink_to(path)
    made = keep_existing(job, 1, [str(path), str(link)], limit_bytes=3, reserve_bytes=0)
    assert made.copies == 0
    assert f"{path}: checkpoints.limit_mb has no room for it" in made.left_out
    linked = keep_existing(job, 1, [str(link)], limit_bytes=100, reserve_bytes=0)
    assert linked.copies == 0
    assert linked.left_out[0].startswith(f"{link}: ")


def test_the_copies_of_all_attempts_have_one_limit(runs: Path, tmp_path: Path) -> None:
    """A program that loads its own saves is started again and again with new ones."""
    job = tmp_path / "job"
    job.mkdir()
    for attempt in range(1, 5):
        path = runs / f"model_{attempt}.txt"
        path.write_bytes(b"ten bytes.")
        made = keep_existing(job, attempt, [str(path)], limit_bytes=25, reserve_bytes=0)
        assert (made.copies, len(made.left_out)) == ((1, 0) if attempt <= 2 else (0, 1))


def test_a_folder_without_a_file_is_nothing_to_keep_and_stops_no_start(runs: Path, tmp_path: Path) -> None:
    """What a save leaves that is killed between its folder and its first file."""
    folder, job = runs / "step-50", tmp_path / "job"
    (folder / "shards").mkdir(parents=True)
    job.mkdir()
    made = keep_existing(job, 1, [str(folder)], limit_bytes=1000, reserve_bytes=0)
    assert (made.copies, made.left_out) == (0, ())
    assert not (job / FOLDER).exists()
    (folder / "shards" / "0.distcp").write_bytes(b"saved")
    assert keep_existing(job, 2, [str(folder)], limit_bytes=1000, reserve_bytes=0).copies == 1
