"""Where the agent writes its reports: into the attempt's own file, never through a name that leads elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import AGENT_PATH

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
