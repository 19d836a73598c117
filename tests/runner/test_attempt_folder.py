"""The folder that daemon and shim agree on: made right, and read whatever became of it."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from supervisor.core import attempt_files as names
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.moments import Moment
from supervisor.runner import process_table, shim, shim_files
from supervisor.runner.attempt_folder import (
    ERROR_CHARS_MAX,
    SAVES_NAMED,
    Save,
    check_disk,
    compose_env,
    prepare,
    read_exit,
    read_shim,
    read_start_error,
    resume_steps,
)
from supervisor.runner.code_copy import INSTALLED

NOW = Moment(500.0, 2_000_000_000.0)


def make(state: Path, number: int, group: int | None = None) -> Path:
    return prepare(state, "yolo", number, argv=["train"], cwd="/", env={"A": "b"}, grace_s=3, save_s=4, group=group)


def compose(env: dict[str, str], inherited: dict[str, str], agent: Path | None = None) -> dict[str, str]:
    return compose_env(
        job="yolo", number=3, folder=Path("/s/3"), env=env, inherited=inherited, agent=agent, conv2d="off",
        agent_settings={names.ENV_CONV2D_SCOPE: "all", names.ENV_CONV2D_WORKSPACE: "256"}, resume_from=None,
        snapshot_every="300.0", mean_fault_s=86400.0,
    )  # fmt: skip


def test_current_points_at_the_newest_attempt_and_older_ones_stay(tmp_path: Path) -> None:
    first, second = make(tmp_path, 1), make(tmp_path, 2)
    current = tmp_path / "jobs" / "yolo" / names.CURRENT
    assert current.resolve() == second
    assert str(current.readlink()) == "2"
    assert (first / names.LAUNCH).exists()
    assert json.loads((second / names.LAUNCH).read_text()) == {
        "version": 1,
        "job": "yolo",
        "attempt": 2,
        "argv": ["train"],
        "cwd": "/",
        "env": {"A": "b"},
        "grace_s": 3,
        "save_s": 4,
        "code": str(INSTALLED.root),
    }
    assert (second / names.CODE).readlink() == INSTALLED.root


@pytest.mark.parametrize(
    ("name", "replace"),
    [
        (names.LOCK, lambda path: path.symlink_to("/nowhere")),
        (names.LOCK, lambda path: path.symlink_to(path)),
        (names.LOCK, os.mkfifo),
        (names.LOCK, Path.mkdir),
        (names.CURRENT, Path.mkdir),
        (f"{names.CURRENT}.tmp", Path.mkdir),
    ],
    ids=["lock: link to nothing", "link to itself", "pipe", "folder", "current: folder", "its draft: folder"],
)
def test_what_is_of_another_kind_in_the_place_of_a_file_of_the_daemons_is_moved_and_stops_no_launch(
    tmp_path: Path, name: str, replace: Callable[[Path], object]
) -> None:
    make(tmp_path, 1)
    place = tmp_path / "jobs" / "yolo" / name
    place.unlink(missing_ok=True)
    replace(place)
    kind = stat.S_IFMT(place.lstat().st_mode)
    second = make(tmp_path, 2)
    assert (tmp_path / "jobs" / "yolo" / names.CURRENT).resolve() == second
    assert stat.S_ISREG((tmp_path / "jobs" / "yolo" / names.LOCK).lstat().st_mode)
    assert stat.S_IFMT(place.with_name(f"{name}.found-1").lstat().st_mode) == kind


def test_a_disk_that_works_is_left_as_it_is_and_a_folder_that_is_not_there_is_no_failing_disk(tmp_path: Path) -> None:
    check_disk(tmp_path, "yolo")
    folder = make(tmp_path, 1)
    before = sorted(path.name for path in folder.parent.iterdir())
    check_disk(tmp_path, "yolo")
    assert sorted(path.name for path in folder.parent.iterdir()) == before


def test_only_the_daemon_reads_its_folders_where_no_group_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    assert [item.stat().st_mode & 0o7777 for item in (folder, folder.parent, folder / names.LAUNCH)] == [
        0o700,
        0o700,
        0o600,
    ]


def test_a_group_writes_into_its_part_of_an_attempt_and_reads_its_launch(tmp_path: Path) -> None:
    folder = make(tmp_path, 1, group=os.getgid())
    for shared in (folder / names.RUN, folder.parent / names.SNAPSHOTS, folder.parent / names.CONV2D):
        assert shared.stat().st_mode & 0o7777 == 0o2770
    for own in (folder, folder.parent, folder.parent.parent):
        assert own.stat().st_mode & 0o7777 == 0o2750
    assert (folder / names.LAUNCH).stat().st_mode & 0o7777 == 0o640
    assert (folder.parent / names.LOCK).stat().st_mode & 0o7777 == 0o640


def test_an_attempt_that_never_started_is_prepared_again(tmp_path: Path) -> None:
    assert make(tmp_path, 1) == make(tmp_path, 1)


@pytest.mark.parametrize("trace", [names.EXIT + ".tmp", names.EXIT, names.SHIM])
def test_an_attempt_that_started_is_never_prepared_again(tmp_path: Path, trace: str) -> None:
    (make(tmp_path, 1) / trace).touch()
    with pytest.raises(FileExistsError, match="has already been started"):
        make(tmp_path, 1)


def test_the_agent_comes_first_on_the_users_python_path(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    assert compose({}, {}, agent)["PYTHONPATH"] == str(agent)
    assert compose({}, {"PYTHONPATH": "/theirs"}, agent)["PYTHONPATH"] == f"{agent}:/theirs"
    assert compose({"PYTHONPATH": "/jobs"}, {"PYTHONPATH": "/theirs"}, agent)["PYTHONPATH"] == f"{agent}:/jobs"
    assert "PYTHONPATH" not in compose({}, {"PYTHONPATH": "/theirs"})


def test_output_is_unbuffered_unless_its_user_says_otherwise() -> None:
    assert compose({}, {})["PYTHONUNBUFFERED"] == "1"
    assert compose({"PYTHONUNBUFFERED": ""}, {})["PYTHONUNBUFFERED"] == ""
    assert "PYTHONUNBUFFERED" not in compose({}, {"PYTHONUNBUFFERED": "0"})


def test_the_attempt_outranks_what_the_job_says_of_it() -> None:
    composed = compose({names.ENV_JOB: "other", names.ENV_RESUME_FROM: "/old.pt"}, {})
    assert composed[names.ENV_JOB] == "yolo"
    assert composed[names.ENV_ATTEMPT] == "3"
    assert composed[names.ENV_FOLDER] == "/s/3/run"
    assert composed[names.ENV_CONV2D] == "off"
    assert composed[names.ENV_CONV2D_SCOPE] == "all"
    assert composed[names.ENV_CONV2D_WORKSPACE] == "256"
    assert composed[names.ENV_RESUME_FROM] == ""


def test_an_attempt_is_given_the_steps_of_what_was_kept_and_of_the_newest_saves() -> None:
    """A save has no path: where the script has it by now is the script's business, its content names it."""
    fingerprint = Fingerprint(size_bytes=5, modified_ns=70, inode=1)
    kept = Checkpoint(path="/s/1/ckpt.pt", source="/d/ckpt.pt", fingerprint=fingerprint, step=25)
    saves = [Save(size_bytes=5, modified_ns=100 + number, step=50 + number) for number in range(SAVES_NAMED + 1)]
    reported = json.loads(resume_steps(None, [kept], saves, asked=False))
    assert reported["files"][:2] == [["/s/1/ckpt.pt", 5, 70, 25], ["/d/ckpt.pt", 5, 70, 25]]
    assert reported["files"][2:] == [[None, 5, save.modified_ns, save.step] for save in reversed(saves[1:])]
    assert json.loads(resume_steps(None, [], saves[:1], asked=False))["files"] == [[None, 5, 100, 50]]
    assert resume_steps(None, [], asked=False) == ""


def test_an_attempt_is_informed_that_its_program_loads_what_no_proof_can_open() -> None:
    note = json.loads(resume_steps(None, [], asked=True, loads_itself=True))
    assert note == {"step": None, "asked": False, "files": [], "loads_itself": True}


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b"[" * 60000, b'{"pid": true}', b'{"exit_code": "0"}']
)
def test_damaged_words_are_no_words(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / names.RUN).mkdir()
    (tmp_path / names.SHIM).write_bytes(damage)
    (tmp_path / names.EXIT).write_bytes(damage)
    assert read_shim(tmp_path) is None
    assert read_exit(tmp_path, NOW) is None
    assert read_start_error(tmp_path) is None


def test_a_word_that_is_no_file_is_no_word(tmp_path: Path) -> None:
    (tmp_path / names.RUN).mkdir()
    os.mkfifo(tmp_path / names.EXIT)
    assert read_exit(tmp_path, NOW) is None


def test_the_end_is_reported_by_the_shims_own_clock_within_this_boot(tmp_path: Path) -> None:
    (tmp_path / names.RUN).mkdir()
    shim_word = {"pid": 1, "start_ticks": 1, "boot_id": process_table.boot_id()}
    exit_word = {"exit_code": 0, "ended_unix_s": 5.0, "ended_monotonic_ns": 480_000_000_000, "in_background": 2}
    (tmp_path / names.SHIM).write_text(json.dumps(shim_word))
    (tmp_path / names.EXIT).write_text(json.dumps(exit_word))
    status = read_exit(tmp_path, NOW)
    assert status is not None
    assert (status.at, status.in_background) == (Moment(480.0, NOW.unix_s - 20.0), 2)


def test_the_end_before_a_reboot_is_reckoned_from_the_wall_clock(tmp_path: Path) -> None:
    (tmp_path / names.RUN).mkdir()
    exit_word = {"signal": 9, "ended_unix_s": NOW.unix_s - 3600, "ended_monotonic_ns": 480_000_000_000}
    (tmp_path / names.SHIM).write_text(json.dumps({"pid": 1, "start_ticks": 1, "boot_id": "another"}))
    (tmp_path / names.EXIT).write_text(json.dumps(exit_word))
    status = read_exit(tmp_path, NOW)
    assert status is not None
    assert status.at == Moment(500.0 - 3600, NOW.unix_s - 3600)
    assert status.signal == 9


HUGE = 10**400


@pytest.mark.parametrize(
    "value",
    [HUGE, -HUGE, 2**63, -1, 1e300, -1e300, math.nan, math.inf, [HUGE], "9" * 400, True],
    ids=lambda value: repr(value)[:20],
)
def test_no_number_of_a_note_reaches_the_daemon_unbounded(tmp_path: Path, value: object) -> None:
    """A training that kills its shim writes in its name."""
    folder = make(tmp_path, 1)
    sound = {
        "pid": 7,
        "start_ticks": 8,
        "boot_id": process_table.boot_id(),
        "training_pid": 9,
        "training_start_ticks": 10,
    }
    for field in (*sound, "started_unix_s", "problem"):
        (folder / names.SHIM).write_text(json.dumps({**sound, field: value}))
        note = read_shim(folder)
        known = () if note is None else (note.pid, note.training_pid, note.start_ticks, note.training_start_ticks)
        assert all(entry is None or 0 <= entry < 2**63 for entry in known)
        assert note is None or note.started_unix_s is None or 0 <= note.started_unix_s < 1e12
    (folder / names.SHIM).write_text(json.dumps(sound))
    end = {"exit_code": 1, "signal": None, "error": None, "ended_unix_s": 2e9, "ended_monotonic_ns": 499 * 10**9}
    for field in (*end, "max_rss_bytes"):
        (folder / names.EXIT).write_text(json.dumps({**end, field: value}))
        status = read_exit(folder, NOW)
        assert status is None or status.at.monotonic_s <= NOW.monotonic_s
        assert status is None or (status.code or 0, status.signal or 0) < (256, 65)
        assert status is None or datetime.fromtimestamp(status.at.unix_s, tz=timezone.utc).year < 10_000


def test_a_note_is_read_in_time_that_its_length_allows(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    (folder / names.EXIT).write_text(
        json.dumps({"exit_code": 3, "error": "e" * 9000})[:-1] + f', "x": {"9" * 50_000}}}'
    )
    status = read_exit(folder, NOW)
    assert status is not None
    assert (status.code, len(status.error or "")) == (3, ERROR_CHARS_MAX)


def test_an_end_that_lies_in_the_future_is_now(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    (folder / names.EXIT).write_text(json.dumps({"exit_code": 1, "ended_unix_s": 17e9}))
    status = read_exit(folder, NOW)
    assert status is not None
    assert status.at == NOW


def test_what_the_daemons_own_environment_holds_is_not_written_into_the_launch() -> None:
    inherited = {"WANDB_API_KEY": "s3cret-key", "PYTHONPATH": "/theirs", "HOME": "/home/owner"}
    composed = compose_env(
        job="one", number=1, folder=Path("/state/jobs/one/1"), env={"BATCH": "4"}, inherited=inherited,
        agent=Path("/agent"), conv2d="auto", agent_settings={}, resume_from=None, snapshot_every="auto",
        mean_fault_s=1.0,
    )  # fmt: skip
    assert "s3cret-key" not in composed.values()
    assert not inherited.keys() & composed.keys() - {"PYTHONPATH"}
    assert (composed["BATCH"], composed["PYTHONPATH"]) == ("4", "/agent:/theirs")


def test_a_launch_of_a_later_version_is_not_run(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    launch = json.loads((folder / names.LAUNCH).read_text())
    for version in (0, shim_files.VERSION):
        (folder / names.LAUNCH).write_text(json.dumps({**launch, "version": version}))
        assert shim.read_launch(str(folder))["argv"] == ["train"]
    (folder / names.LAUNCH).write_text(json.dumps({**launch, "version": shim_files.VERSION + 1}))
    with pytest.raises(shim.StartError, match=r"launch.json has version 2, and this shim reads up to 1"):
        shim.read_launch(str(folder))
