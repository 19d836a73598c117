"""A limit on a wait counts the time in which the waiting process ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from supervisor.children.running_limit import RunningLimit

ROOT = Path(__file__).resolve().parents[2]
WAITING = """
import sys
from supervisor import programs
ran = programs.run(("sh", "-c", "echo began; while [ ! -e go ]; do sleep 0.01; done; echo ended"), 4.0)
print(ran.status, ran.stdout.decode().split())
"""
"""Its limit is shorter than the stop, and longer than what it waits for takes after that."""
STOPPED_S = 5.0


class HandClock:
    """Advances by what is waited for."""

    def __init__(self) -> None:
        self.now_s, self.waits = 100.0, 0

    def read(self) -> float:
        return self.now_s

    def wait(self, wait_s: float) -> bool:
        self.now_s += wait_s
        self.waits += 1
        return False


def test_a_process_that_runs_waits_for_as_long_as_the_limit_says() -> None:
    clock = HandClock()
    assert not RunningLimit(120.0, clock.read).wait_for(clock.wait)
    assert clock.now_s == pytest.approx(220.0)
    assert clock.waits <= 250


def test_a_stop_of_minutes_counts_as_a_second_of_it() -> None:
    clock = HandClock()
    limit = RunningLimit(10.0, clock.read)
    assert limit.next_wait_s() > 0
    clock.now_s += 300.0
    assert not limit.wait_for(clock.wait)
    assert clock.now_s == pytest.approx(100.0 + 300.0 + 9.0)


def test_what_has_come_meanwhile_is_taken_even_where_the_limit_is_over() -> None:
    limit = RunningLimit(0.0)
    here = threading.Event()
    assert not limit.wait_for(here.wait)
    here.set()
    assert limit.wait_for(here.wait)


@pytest.mark.waits
def test_a_program_of_a_process_that_was_stopped_for_longer_than_its_limit_is_not_late(tmp_path: Path) -> None:
    """Both stop, as in a virtual machine that is paused: nothing of it came to its end meanwhile."""
    waiting = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pids = [waiting.pid, *_wait_for_children(waiting.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        subprocess.run(["sleep", str(STOPPED_S)], check=True)
        (tmp_path / "go").touch()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert waiting.communicate(timeout=60)[0] == "0 ['began', 'ended']\n"
    finally:
        waiting.kill()
        waiting.wait()


def _wait_for_children(pid: int) -> list[int]:
    """Return the children of a process once there are some that have begun their program."""
    until = time.perf_counter() + 60
    while time.perf_counter() < until:
        below = Path(f"/proc/{pid}/task").glob("*/children")
        found = [int(word) for path in below for word in path.read_text().split()]
        if found and all(Path(f"/proc/{child}/comm").read_text() == "sh\n" for child in found):
            return found
        time.sleep(0.01)
    raise AssertionError("it started nothing")
