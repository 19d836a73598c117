"""A rank that begins to end is reported while the kernel still frees its memory."""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.cluster.end_watch import EndWatch
from supervisor.runner import process_table

pytestmark = pytest.mark.slow
AGENT = Path(__file__).resolve().parents[2] / "supervisor" / "agent" / "path"
HOLD = "import mmap, os, sys, time; from rocm_agent import end_word; end_word.hold()\n"
LARGE = "m = mmap.mmap(-1, 1 << 29); m.madvise(mmap.MADV_NOHUGEPAGE); m.write(bytes(1 << 29))\n"
READY = "print(os.getpid(), flush=True)\n"
LIMIT_S = 30.0
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(program: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(AGENT), "ROCM_SUPERVISOR_EPOCH": "run.0.1", "LOCAL_RANK": "0"}
        words, pipe = [sys.executable, "-S", "-c", program], subprocess.PIPE
        started.append(subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline().strip() == str(started[-1].pid)
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def watch(process: subprocess.Popen[str]) -> queue.SimpleQueue[tuple[int, float]]:
    """Return where the end of a process will be reported, with the time."""
    reported: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
    watching, found = EndWatch(lambda ended: reported.put((ended.pid, time.perf_counter()))), None
    found = process_table.read_process(process.pid)
    assert found is not None
    watching.add(found)
    return reported


def await_waiting(*, wanted: bool) -> None:
    """Wait until a thread of this process waits for a word, as /proc/TID/syscall has it, or until none does."""
    end = time.perf_counter() + LIMIT_S
    while time.perf_counter() < end:
        calls = (thread / "syscall" for thread in Path("/proc/self/task").iterdir())
        if any(call.read_text().startswith("449 ") for call in calls) is wanted:
            return
        time.sleep(0.01)
    raise TimeoutError("waits for a word" if not wanted else "waits for no word")


def test_a_killed_rank_is_reported_before_its_memory_is_freed(start: Start) -> None:
    process = start(HOLD + LARGE + READY + "time.sleep(100)")
    reported, handle = watch(process), os.pidfd_open(process.pid)
    await_waiting(wanted=True)
    process.kill()
    select.select([handle], [], [], LIMIT_S)
    gone_s = time.perf_counter()
    os.close(handle)
    pid, reported_s = reported.get(timeout=LIMIT_S)
    assert pid == process.pid
    assert reported_s < gone_s


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_that_exits_is_reported_unless_its_status_is_0(start: Start, status: int) -> None:
    process = start(f"{HOLD}{READY}sys.stdin.read(); sys.exit({status})")
    reported = watch(process)
    await_waiting(wanted=True)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None  # not reaped here: nothing is left to look at of a small process that its parent waited for
    await_waiting(wanted=False)
    if status:
        assert reported.get(timeout=LIMIT_S)[0] == process.pid
    assert reported.empty()


def test_a_word_that_is_given_up_by_a_rank_that_goes_on_is_no_end(start: Start) -> None:
    again = f"os.execv(sys.executable, [sys.executable, '-S', '-c', {READY + 'time.sleep(100)'!r}])"
    process = start(f"{HOLD}{READY}sys.stdin.readline(); {again}")
    reported = watch(process)
    await_waiting(wanted=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    await_waiting(wanted=False)
    assert reported.empty()


def test_memory_that_the_rank_can_cut_is_not_mapped(start: Start) -> None:
    share = "f = os.memfd_create('rocm-supervisor-end', 0); os.write(f, b'\\xff' * 4096)\n"
    process = start("import os, sys, time\n" + share + READY + "time.sleep(100)")
    reported = watch(process)
    process.kill()
    process.wait()
    assert reported.empty()
    assert "rocm-supervisor-end" not in Path("/proc/self/maps").read_text()
