"""One daemon a state directory, also after the first was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.daemon.state_lock import NAME, StateLockedError, lock_state

HOLD = """
import sys
from pathlib import Path
from supervisor.daemon.state_lock import lock_state
lock_state(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_holder_is_refused_with_the_pid_of_the_first_until_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(StateLockedError, match=f"pid {first.pid}.*state_dir"):
            lock_state(tmp_path)
        first.kill()
        first.wait(120)
    held = lock_state(tmp_path)
    assert (tmp_path / NAME).read_text() == f"{os.getpid()}\n"
    os.close(held)


def test_the_lock_does_not_outlive_its_holder_in_a_child(tmp_path: Path) -> None:
    held = lock_state(tmp_path)
    assert not os.get_inheritable(held)
    os.close(held)


def test_a_directory_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        lock_state(tmp_path / "none")
