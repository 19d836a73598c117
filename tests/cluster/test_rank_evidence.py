"""What the process of a rank shows: a wait in the kernel counts where it lasts, not where a disk is read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.cluster.rank_evidence import Taken, collect_ranks, read_waits
from supervisor.cluster.ranks import RankProcess
from supervisor.core.fleet.clock_offset import ClockOffset
from supervisor.runner.shim import read_process

VFORK = """
import ctypes, os
# The parent of a vfork waits in state D until its child ends or becomes another program.
if ctypes.CDLL(None).vfork() == 0:
    os.write(1, b"up")
    os.read(0, 1)
    os._exit(0)
"""
OFFSET = ClockOffset(seconds=0.0, error_s=0.0)


@pytest.fixture(name="waiting")
def process_that_waits_in_the_kernel() -> Iterator[subprocess.Popen[bytes]]:
    parent = subprocess.Popen([sys.executable, "-c", VFORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert parent.stdout.read(2) == b"up"
    while not read_waits([parent.pid]):
        assert parent.poll() is None
    yield parent
    parent.stdin.close()
    parent.wait(120)
    parent.stdout.close()


def state_of(pid: int, folder: Path, waited: dict[int, tuple[str, ...]]) -> str | None:
    process = read_process(pid)
    assert process is not None
    rank = RankProcess(rank=0, process=process, launcher=None, local_size=1, handle=-1)
    (found,) = collect_ranks("n0", Taken(folder=folder, stacks=folder, waited=waited), [rank], OFFSET)
    return found.process_state


def test_a_rank_that_has_not_run_since_it_was_looked_at_is_stuck(
    waiting: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    waited = dict(read_waits([waiting.pid, os.getpid()]))
    assert list(waited) == [waiting.pid]
    assert state_of(waiting.pid, tmp_path, waited) == "D"


def test_a_rank_that_ran_in_between_is_not(waiting: subprocess.Popen[bytes], tmp_path: Path) -> None:
    counted = read_waits([waiting.pid])[waiting.pid]
    earlier = tuple(f"{line}0" for line in counted)
    assert state_of(waiting.pid, tmp_path, {waiting.pid: earlier}) is None
    assert state_of(waiting.pid, tmp_path, {}) is None, "it began to wait while evidence was taken"


def test_any_other_state_is_reported_as_it_is(tmp_path: Path) -> None:
    assert state_of(os.getpid(), tmp_path, {}) == "R"
