"""What a training puts into its attempt's folder in place of its files: nothing waits, nothing leaves the folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import untrusted_files
from supervisor.control.tail import tail
from supervisor.core import attempt_files as names
from supervisor.core.moments import Moment
from supervisor.daemon.attempt_reader import FollowedAttempt, parse_ranks
from supervisor.daemon.cleanup import clear_snapshots, sweep
from supervisor.runner import attempt_folder as attempts
from supervisor.runner import process_table
from supervisor.runner.evidence import EvidenceFacts, take
from supervisor.sources.attempt.output import OutputReader
from tests.runner.attempts_by_hand import Attempts, until

NOW = Moment(500.0, 2_000_000_000.0)
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Attempts]:
    with Attempts(tmp_path / "state") as made:
        yield made


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "jobs" / "one" / "1"
    attempts.prepare(tmp_path / "state", "one", 1, argv=["true"], cwd="/", env={}, grace_s=1, save_s=1, group=None)
    (tmp_path / "secret").write_text("the webhook's secret\n")
    return folder


@pytest.mark.parametrize("name", [names.FOLDED, f"{names.FOLDED}.new", names.OUTPUT])
def test_a_pipe_in_place_of_an_output_file_holds_nobody_up(attempt: Path, name: str) -> None:
    """The thread that follows all jobs waited in open(2) for ever, and so did each daemon after it."""
    os.mkfifo(attempt / name)
    if name != names.OUTPUT:
        (attempt / names.OUTPUT).write_bytes(b"a line\n" * 5000)
    reader = OutputReader(attempt, 4096)
    page = reader.read(NOW)
    if name == f"{names.FOLDED}.new":
        assert page.problem is None
        assert "left out" in (attempt / names.FOLDED).read_text()
    else:
        assert "is a named pipe" in (page.problem or "")


@pytest.mark.parametrize("part", ["leaf", "middle"])
def test_logs_print_no_file_that_a_link_leads_to(attempt: Path, tmp_path: Path, part: str) -> None:
    if part == "leaf":
        (attempt / names.FOLDED).symlink_to(tmp_path / "secret")
        (attempt / names.OUTPUT).symlink_to(tmp_path / "secret")
    else:
        shutil.rmtree(attempt / names.RUN)
        (tmp_path / "theirs").mkdir()
        (tmp_path / "secret").rename(tmp_path / "theirs" / "output.log")
        (attempt / names.RUN).symlink_to(tmp_path / "theirs")
    page = OutputReader(attempt, 4096).read(NOW)
    assert page.lines == ()
    assert "symbolic link" in (page.problem or "")
    if part == "leaf":
        with pytest.raises(untrusted_files.LinkRefusedError):
            tail(attempt, names.FOLDED, None, 50)


@pytest.mark.slow
def test_evidence_is_never_written_through_a_link(attempt: Path, tmp_path: Path) -> None:
    """A link in place of evidence/ led the daemon to truncate its own database."""
    state = tmp_path / "state"
    for name in ("records.jsonl", "kernel.txt", "output.txt"):
        (state / name).write_text("precious")
    (state / "one-1").mkdir()
    (state / "one-1" / "records.jsonl").write_text("precious")
    (attempt / names.EVIDENCE).symlink_to(state)
    result = take(attempt, Attempts(state).launcher, "one", EvidenceFacts(kernel_lines=["x"]), "one-1")
    assert "symbolic link" in " ".join(result.missing)
    assert (state / "one-1" / "records.jsonl").read_text() == "precious"
    assert sorted(path.name for path in (state / "one-1").iterdir()) == ["records.jsonl"]


@pytest.mark.slow
def test_a_file_of_the_evidence_is_never_written_through_a_link(attempt: Path, tmp_path: Path) -> None:
    incident = attempt / names.EVIDENCE / "one-1"
    incident.mkdir(parents=True)
    (incident / "kernel.txt").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", incident / "records.jsonl")
    result = take(attempt, Attempts(tmp_path / "state").launcher, "one", EvidenceFacts(kernel_lines=["x"]), "one-1")
    assert any(item.startswith("kernel.txt: ") and "symbolic link" in item for item in result.missing)
    assert any(item.startswith("records.jsonl: ") and "2 names" in item for item in result.missing)
    assert (tmp_path / "secret").read_text() == "the webhook's secret\n"


@pytest.mark.slow
def test_what_is_swept_away_lies_in_the_folder(attempt: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "recorder.bin").touch()
    (theirs / "step-1.pt").touch()
    for number in range(2, 9):
        (attempt.with_name(str(number)) / names.RUN).mkdir(parents=True)
    (attempt / names.RUN).rmdir()
    (attempt / names.RUN).symlink_to(theirs)
    snapshots = attempt.with_name(names.SNAPSHOTS)
    snapshots.rmdir()
    snapshots.symlink_to(theirs)
    sweep(attempt.parent, 3650, NOW.unix_s)
    sweep(attempt.parent, 0, NOW.unix_s * 2)
    clear_snapshots(snapshots)
    assert sorted(path.name for path in theirs.iterdir()) == ["recorder.bin", "step-1.pt"]


# --- folders ------------------------------------------------------------------------------------------------------


def test_a_link_that_waits_for_the_next_attempt_is_moved_aside(attempt: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    attempt.with_name("2").symlink_to(theirs)
    folder = attempts.prepare(
        tmp_path / "state", "one", 2, argv=["true"], cwd="/", env={"A": "secret"}, grace_s=1, save_s=1, group=None
    )
    assert not folder.is_symlink()
    assert list(theirs.iterdir()) == []
    assert attempt.with_name("2.found-1").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that another user owns")
def test_a_folder_of_another_user_is_never_an_attempts(attempt: Path, tmp_path: Path) -> None:
    """Whoever made the next attempt's folder could replace launch.json between its writing and its reading."""
    squatted = attempt.with_name("2")
    squatted.mkdir()
    os.chown(squatted, 65534, -1)
    folder = attempts.prepare(
        tmp_path / "state", "one", 2, argv=["true"], cwd="/", env={"A": "secret"}, grace_s=1, save_s=1, group=None
    )
    assert folder.stat().st_uid == os.geteuid()
    assert list(attempt.with_name("2.found-1").iterdir()) == []


def test_a_training_of_another_user_can_write_into_no_folder_of_the_daemon(tmp_path: Path) -> None:
    folder = attempts.prepare(
        tmp_path, "one", 1, argv=["true"], cwd="/", env={}, grace_s=1, save_s=1, group=os.getegid()
    )
    own = [folder, folder.parent, folder.parent.parent]
    assert all(item.stat().st_mode & 0o022 == 0 for item in own)
    assert all(item.stat().st_mode & 0o007 == 0 for item in own)
    assert (folder / names.RUN).stat().st_mode & 0o7777 == 0o2770


# --- processes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_signal_goes_to_a_process_that_shim_json_names_and_is_no_shim(runs: Attempts) -> None:
    folder = runs.launch(SLEEP)
    real = runs.note(folder)
    for pid in (os.getpid(), os.getppid()):
        named = process_table.read_process(pid)
        assert named is not None
        note = json.loads((folder / names.SHIM).read_text())
        (folder / names.SHIM).write_text(json.dumps({**note, "pid": pid, "start_ticks": named.start_ticks}))
        assert attempts.living_shim(folder) is None
        assert attempts.names_another(folder)
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        assert runs.launcher.alive("job", folder), "the shim itself is found by its command line"
        assert runs.launcher.signal("job", folder, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == []
    until(lambda: process_table.read_process(real.pid) is None, "the real shim to end its training")


@pytest.mark.slow
def test_a_process_next_to_the_shim_is_not_taken_for_it(runs: Attempts) -> None:
    """The training's own child, with the right start time and boot, is no shim either."""
    folder = runs.launch(SLEEP)
    note = json.loads((folder / names.SHIM).read_text())
    lying = {**note, "pid": note["training_pid"], "start_ticks": note["training_start_ticks"]}
    (folder / names.SHIM).write_text(json.dumps(lying))
    assert attempts.living_shim(folder) is None


# --- ranks --------------------------------------------------------------------------------------------------------


def test_a_superscript_is_no_rank() -> None:
    """`isdigit` says yes to it, and `int` raises: the last steps of the attempt stayed unread."""
    found = ["recorder.rank².bin", "recorder.rank10.bin", "recorder.rank3.bin", "recorder.rank03.bin", "recorder.bin"]
    assert parse_ranks([*found, "recorder.rank-1.bin", "recorder.rank.bin", "recorder.rank1.bin.tmp"]) == [
        (3, "recorder.rank3.bin"),
        (10, "recorder.rank10.bin"),
    ]


def test_odd_names_among_the_recorders_hide_no_rank(attempt: Path) -> None:
    for name in ("recorder.rank².bin", "recorder.rank1.bin", "recorder.rank0.bin"):
        (attempt / names.RUN / name).touch()
    followed = FollowedAttempt(job="one", attempt=1, folder=attempt, output_limit_bytes=4096)
    followed.find_ranks()
    assert sorted(followed.recorders) == [0, 1]
