"""Who waits in the kernel and where, with a process that does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.core.moments import Moment
from supervisor.sources.processes import TreeWatch, waits_of

VFORK = """
import ctypes, os
# The parent of a vfork waits in state D until its child ends or becomes another program.
if ctypes.CDLL(None).vfork() == 0:
    os.write(1, b"up")
    os.read(0, 1)
    os._exit(0)
"""


def channel_of(pid: int) -> str | None:
    channel = (Path("/proc") / str(pid) / "wchan").read_text()
    return channel if channel != "0" else None


@pytest.mark.slow
def test_a_process_in_state_d_is_named_with_its_wait_channel() -> None:
    parent = subprocess.Popen([sys.executable, "-c", VFORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    try:
        assert parent.stdout.read(2) == b"up", "while it starts it may wait for its files, and not for long"
        end = time.perf_counter() + 120
        # On its way into the wait it is in state D already, has not left the processor yet and has no channel; a kernel
        # that names none to anybody is given five seconds.
        while not (waits := waits_of(parent.pid, "python")) or (
            waits[0].channel is None and time.perf_counter() < end - 115
        ):
            assert time.perf_counter() < end
            assert parent.poll() is None
        reading = TreeWatch(parent.pid).read(Moment(0.0, 0.0))
        assert parent.pid in reading.uninterruptible_pids
        assert [wait.pid for wait in reading.waits][:1] == [parent.pid]
        counts = {TreeWatch(parent.pid).read(Moment(0.0, 0.0)).waits[0].switches for _ in range(10)}
        assert counts == {reading.waits[0].switches} != {None}, "it has not run in between"
        assert (waits[0].pid, waits[0].thread) == (parent.pid, parent.pid)
        assert waits[0].channel == channel_of(parent.pid)
        assert waits[0].words.startswith(f"process {parent.pid} (python) waits in ")
    finally:
        parent.stdin.close()
        parent.wait(120)
        parent.stdout.close()


@pytest.mark.slow
def test_a_process_that_is_gone_waits_for_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert waits_of(gone.pid, "true") == ()


def test_the_thread_of_a_dead_process_that_is_left_in_the_kernel_is_found(tmp_path: Path) -> None:
    """The main thread is a zombie by then; names may hold brackets, and stacks are written by the kernel."""
    for thread, stat in ((7, "7 (a) D (b) Z 1 7"), (9, "9 (pt_main) D 1 7")):
        folder = tmp_path / "7" / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(stat)
        (folder / "wchan").write_text("0" if thread == 7 else "amdgpu_fence_wait")
        (folder / "stack").write_text("[<0>] dma_fence_default_wait+0x1e/0x2a0\n[<0>] amdgpu_cs_ioctl+0x1/0x2\n")
    (wait,) = waits_of(7, "python", tmp_path)
    assert wait.words == (
        "process 7 (python), thread 9, waits in amdgpu_fence_wait (called by dma_fence_default_wait, amdgpu_cs_ioctl)"
    )
