"""For whose stacks evidence waits: a rank that is at its exit, has ended or is stopped will dump none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.runner import process_table, shim
from supervisor.runner.stacks import may_answer

HANDLES = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGRTMIN + 7, file=open(sys.argv[1], "w"))
print("ready", flush=True)
time.sleep(600)
"""
NAME = "stacks.txt"


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", HANDLES, str(tmp_path / NAME)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_rank_that_handles_the_signal_is_waited_for(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    assert may_answer(tmp_path, rank.pid, NAME)


def test_a_rank_that_is_at_its_exit_and_removed_its_dump_is_not(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    """It may be there for a second more, as where it lost its peer and torch ends its threads."""
    (tmp_path / NAME).unlink()
    assert not may_answer(tmp_path, rank.pid, NAME)


def test_a_rank_that_is_stopped_is_not(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(rank.pid, signal.SIGSTOP)
    os.waitpid(rank.pid, os.WUNTRACED)
    assert not may_answer(tmp_path, rank.pid, NAME)


def test_a_rank_that_has_ended_or_has_no_handler_is_not(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(rank.pid, signal.SIGKILL)
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    assert not may_answer(tmp_path, rank.pid, NAME)
    with subprocess.Popen(["/bin/sleep", "600"]) as other:
        assert not process_table.catches(other.pid, shim.STACKS_SIGNAL)
        assert not may_answer(tmp_path, other.pid, NAME)
        other.kill()
