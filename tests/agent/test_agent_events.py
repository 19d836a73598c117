"""Where the agent writes its reports: into the attempt's own file, never through a name that leads elsewhere."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import AGENT_PATH

from tests.rigs.failing_disk import failing

REPORTING = "import sys; from rocm_agent import events; events.begin(sys.argv[1], 0); events.write('alive')"


def report(folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(AGENT_PATH)}
    subprocess.run([sys.executable, "-c", REPORTING, str(folder)], env=env, check=True)


def test_reports_are_appended_to_the_file_of_the_attempt(tmp_path: Path) -> None:
    report(tmp_path)
    report(tmp_path)
    assert (tmp_path / "agent.jsonl").read_bytes().count(b'"alive"') == 2


@pytest.mark.parametrize("lay", [os.symlink, os.link])
def test_no_report_goes_into_a_file_elsewhere(tmp_path: Path, lay: Callable[[Path, Path], None]) -> None:
    other, folder = tmp_path / "other", tmp_path / "run"
    other.write_text("kept")
    folder.mkdir()
    lay(other, folder / "agent.jsonl")
    report(folder)
    assert other.read_text() == "kept"


@pytest.mark.parametrize(
    "lay",
    [
        lambda at: at.symlink_to("/nowhere"),
        lambda at: at.symlink_to(at),
        os.mkfifo,
        lambda at: (at / "other").mkdir(parents=True),
    ],
    ids=["link to nothing", "link to itself", "pipe", "folder"],
)
def test_what_is_no_file_in_its_place_is_moved_aside_and_nothing_is_lost(
    tmp_path: Path, lay: Callable[[Path], object]
) -> None:
    report(tmp_path)
    (tmp_path / "agent.jsonl").unlink()
    lay(tmp_path / "agent.jsonl")
    kind = (tmp_path / "agent.jsonl").lstat().st_mode
    report(tmp_path)
    assert (tmp_path / "agent.jsonl").read_bytes().count(b'"alive"') == 1
    assert (tmp_path / "agent.jsonl.found-1").lstat().st_mode == kind


TWO_REPORTS = f"{REPORTING}; events.write('train_end')"


@pytest.mark.mounts
@pytest.mark.parametrize(
    ("program", "refused", "reports"), [(REPORTING, 1, ["alive"]), (TWO_REPORTS, 2, ["alive", "train_end"])]
)
def test_what_a_disk_refuses_is_written_at_the_next_try(
    tmp_path: Path, program: str, refused: int, reports: list[str]
) -> None:
    with failing(tmp_path / "disk", tmp_path / "behind") as disk:
        disk.fails_at("write agent.jsonl", 1, errno.ENOSPC, times=refused)
        env = {**os.environ, "PYTHONPATH": str(AGENT_PATH)}
        subprocess.run([sys.executable, "-c", program, str(disk.at)], env=env, check=True)
        assert len(disk.failed_changes) == refused
        lines = (disk.real / "agent.jsonl").read_text().splitlines()
        assert [json.loads(line)["event"] for line in lines] == reports
