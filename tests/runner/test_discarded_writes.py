"""Whatever a probed command writes is gone with it, but for its report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.runner import discarded_writes


@pytest.mark.mounts
def test_a_command_writes_over_removes_and_makes_files_and_none_of_it_stays(tmp_path: Path) -> None:
    scratch, work = tmp_path / "scratch", tmp_path / "work"
    for folder in (scratch, work):
        folder.mkdir()
    (work / "kept").write_text("kept")
    (work / "other").write_text("other")
    script = f"echo new > kept; cat kept; rm other; mkdir made; echo done > {scratch}/report; exit 5"
    command = [sys.executable, "-I", "-S", discarded_writes.__file__, str(scratch), "--", "sh", "-c", script]
    ended = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (5, "new\n"), ended.stderr
    assert {path.name: path.read_text() for path in work.iterdir()} == {"kept": "kept", "other": "other"}
    assert (scratch / "report").read_text() == "done\n"


def test_the_kernels_own_file_systems_are_used_as_they_are() -> None:
    mounts = [("/", "ext4"), ("/dev", "devtmpfs"), ("/dev/shm", "tmpfs"), ("/home", "btrfs"), ("/proc", "proc")]
    assert [place for place, _ in discarded_writes._outermost_live(mounts)] == ["/", "/dev", "/home", "/proc"]
