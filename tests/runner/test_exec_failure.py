"""A command that cannot be executed is reported with what is missing, and with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts_by_hand import Attempts

from supervisor.core import start_failure
from supervisor.runner import exec_failure
from supervisor.runner.launcher import LaunchError


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Attempts]:
    with Attempts(tmp_path / "state") as made:
        yield made


def fails(runs: Attempts, *argv: str, cwd: str = "/", path: str = "/usr/bin:/bin") -> str:
    """Return the error of a launch; the rules of core know it for one that another try does not change."""
    with pytest.raises(LaunchError) as error:
        runs.launcher.launch("job", runs.prepare(list(argv), cwd=cwd, env={"PATH": path}))
    assert start_failure.launch_failure(str(error.value)) is not None
    return str(error.value).partition(" of the job: ")[2]


def script(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "train.sh"
    path.write_text(text, newline="")
    path.chmod(mode)
    return str(path)


def test_core_knows_its_hint_of_a_disk() -> None:
    assert exec_failure.UNMOUNTED == start_failure.UNMOUNTED


def test_a_program_that_no_folder_of_path_has_is_named(runs: Attempts) -> None:
    reason = fails(runs, "pyhton", "train.py")
    assert reason == "not found; use an absolute path or add its directory to the job's PATH"


def test_a_folder_of_path_that_is_missing_is_named(runs: Attempts, tmp_path: Path) -> None:
    reason = fails(runs, "yolo", path=f"{tmp_path}/venv/bin:/bin")
    assert reason.startswith(f"not found (is its disk mounted?); its PATH names {tmp_path}/venv/bin, not there")


def test_a_file_that_is_missing_in_its_folder_is_not_waited_for(runs: Attempts, tmp_path: Path) -> None:
    script(tmp_path, "")
    assert fails(runs, f"{tmp_path}/trian.sh") == f"No such file or directory: there is no {tmp_path}/trian.sh"


def test_the_first_folder_that_is_missing_is_named(runs: Attempts, tmp_path: Path) -> None:
    named = f"No such file or directory (is its disk mounted?): there is no folder {tmp_path}/home"
    assert fails(runs, f"{tmp_path}/home/me/run/train.sh") == named
    assert fails(runs, "true", cwd=f"{tmp_path}/home/me/run") == named


def test_an_empty_folder_may_be_where_a_disk_belongs(runs: Attempts, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    assert "(is its disk mounted?)" in fails(runs, f"{tmp_path}/mnt/train.sh")
    assert "(is its disk mounted?)" in fails(runs, "true", cwd=f"{tmp_path}/mnt/run")


def test_a_link_that_leads_nowhere_is_reported(runs: Attempts, tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(tmp_path / "opt/python")
    assert "python, to which a link of that name leads" in fails(runs, f"{tmp_path}/python")


@pytest.mark.parametrize("first", ["#!{}/venv/bin/pyhton\n", "#! {}/venv/bin/pyhton -u\n"])
def test_an_interpreter_that_is_missing_is_named(runs: Attempts, tmp_path: Path, first: str) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch()
    reason = fails(runs, script(tmp_path, first.format(tmp_path)))
    named = f"there is no {tmp_path}/venv/bin/pyhton, which its first line names as its interpreter"
    assert reason == f"No such file or directory: {named}"


def test_a_script_with_the_line_ends_of_windows_is_reported(runs: Attempts, tmp_path: Path) -> None:
    assert "CR LF" in fails(runs, script(tmp_path, "#!/bin/sh\r\ntrue\r\n"))


def test_a_script_without_the_right_or_without_a_first_line_is_reported(runs: Attempts, tmp_path: Path) -> None:
    assert fails(runs, script(tmp_path, "#!/bin/sh\n", 0o644)).startswith("Permission denied: make it executable")
    assert fails(runs, str(tmp_path)) == "Permission denied: it is a folder"
    assert fails(runs, script(tmp_path, "echo\n")).startswith("Exec format error: begin it with a line such as")
    assert fails(runs, f"{tmp_path}/train.sh/main.py").endswith("train.sh is a file")
