"""The folder that daemon and shim agree on: made right, and read whatever became of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from supervisor.core import folder as names
from supervisor.core.moments import Moment
from supervisor.runner import shim
from supervisor.runner.attempt import agent_path, compose_env, prepare, read_exit, read_shim, read_start_error

NOW = Moment(500.0, 2_000_000_000.0)


def make(state: Path, number: int, group: int | None = None) -> Path:
    return prepare(state, "yolo", number, argv=["train"], cwd="/", env={"A": "b"}, grace_s=3, save_s=4, group=group)


def compose(env: dict[str, str], inherited: dict[str, str], agent: Path | None = None) -> dict[str, str]:
    return compose_env(
        job="yolo", number=3, folder=Path("/s/3"), env=env, inherited=inherited, agent=agent, conv2d="off",
        conv2d_settings={names.ENV_CONV2D_SCOPE: "all", names.ENV_CONV2D_WORKSPACE: "256"}, resume_from=None,
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
    }


def test_only_the_daemon_reads_its_folders_where_no_group_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    assert [one.stat().st_mode & 0o7777 for one in (folder, folder.parent, folder / names.LAUNCH)] == [
        0o700,
        0o700,
        0o600,
    ]


def test_a_group_may_write_into_its_attempt_and_read_its_launch(tmp_path: Path) -> None:
    folder = make(tmp_path, 1, group=os.getgid())
    assert [one.stat().st_mode & 0o7777 for one in (folder, folder.parent, folder / names.LAUNCH)] == [
        0o2770,
        0o2770,
        0o640,
    ]


def test_an_attempt_that_never_started_is_prepared_anew(tmp_path: Path) -> None:
    assert make(tmp_path, 1) == make(tmp_path, 1)


@pytest.mark.parametrize("trace", ["exit.json.tmp", names.EXIT, names.SHIM])
def test_an_attempt_that_started_is_never_prepared_again(tmp_path: Path, trace: str) -> None:
    (make(tmp_path, 1) / trace).touch()
    with pytest.raises(FileExistsError, match="started before"):
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
    assert composed[names.ENV_FOLDER] == "/s/3"
    assert composed[names.ENV_CONV2D] == "off"
    assert composed[names.ENV_CONV2D_SCOPE] == "all"
    assert composed[names.ENV_CONV2D_WORKSPACE] == "256"
    assert composed[names.ENV_RESUME_FROM] == ""


def test_the_agent_of_this_package_is_accepted() -> None:
    assert agent_path().name == "path"


def test_an_agent_that_anybody_may_write_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "path" / "rocm_agent"
    package.mkdir(parents=True)
    assert agent_path(tmp_path / "path") == tmp_path / "path"
    (package / "__init__.py").touch()
    (package / "__init__.py").chmod(0o666)
    with pytest.raises(ValueError, match=r"__init__\.py: writable by everybody.*chmod o-w"):
        agent_path(tmp_path / "path")


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b"[" * 60000, b'{"pid": true}', b'{"exit_code": "0"}']
)
def test_damaged_words_are_no_words(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / names.SHIM).write_bytes(damage)
    (tmp_path / names.EXIT).write_bytes(damage)
    assert read_shim(tmp_path) is None
    assert read_exit(tmp_path, NOW) is None
    assert read_start_error(tmp_path) is None


def test_a_word_that_is_no_file_is_no_word(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / names.EXIT)
    assert read_exit(tmp_path, NOW) is None


def test_the_end_is_told_by_the_shims_own_clock_within_this_boot(tmp_path: Path) -> None:
    shim_word = {"pid": 1, "start_ticks": 1, "boot_id": shim.boot_id()}
    exit_word = {"exit_code": 0, "ended_unix_s": 5.0, "ended_monotonic_ns": 480_000_000_000}
    (tmp_path / names.SHIM).write_text(json.dumps(shim_word))
    (tmp_path / names.EXIT).write_text(json.dumps(exit_word))
    status = read_exit(tmp_path, NOW)
    assert status is not None
    assert status.at == Moment(480.0, NOW.unix_s - 20.0)


def test_the_end_before_a_reboot_is_reckoned_from_the_wall_clock(tmp_path: Path) -> None:
    exit_word = {"signal": 9, "ended_unix_s": NOW.unix_s - 3600, "ended_monotonic_ns": 480_000_000_000}
    (tmp_path / names.SHIM).write_text(json.dumps({"pid": 1, "start_ticks": 1, "boot_id": "another"}))
    (tmp_path / names.EXIT).write_text(json.dumps(exit_word))
    status = read_exit(tmp_path, NOW)
    assert status is not None
    assert status.at == Moment(500.0 - 3600, NOW.unix_s - 3600)
    assert status.signal == 9
