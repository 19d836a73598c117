"""A process whose memory is locked by a thread in the kernel holds up nobody who looks for others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from attempts_by_hand import until

from supervisor.runner import process_table
from supervisor.runner.process_table import Process
from supervisor.runner.process_words import read_words
from tests.rigs.hanging_fs import HangingFs, hanging

pytestmark = pytest.mark.mounts
LOCKING = """
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
shared, private_fixed_anonymous = mmap.MAP_SHARED, 0x32
at = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, shared, os.open(sys.argv[1], os.O_RDWR), 0)
ctypes.memset(at, 1, 4096)
print(flush=True)
sys.stdin.readline()
# In place of what is mapped there, which is written to its file system before that, with the lock held.
again = lambda: libc.mmap(at, 4096, mmap.PROT_READ, private_fixed_anonymous, -1, 0)
threading.Thread(target=again, daemon=True).start()
libc.pause()
"""

WITHOUT_ROOM = """
import os, sys, threading
from supervisor.runner import process_table
from supervisor.runner.process_words import read_words
own, locked = (process_table.read_process(pid) for pid in (os.getpid(), int(sys.argv[1])))
read_words([locked], "cmdline")
threading.stack_size(1 << 46)
found = read_words([locked, own], "cmdline")
print(bool(found[own.pid]), found[locked.pid], flush=True)
os._exit(0)
"""
"""A stack for which no machine has room, once the first reader hangs."""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[HangingFs]:
    with hanging(tmp_path / "far", tmp_path / "behind") as far:
        yield far


@pytest.fixture
def locked(far: HangingFs) -> Iterator[Process]:
    """A process whose first thread sleeps while another waits for a file system, with the lock of its memory."""
    kept = far.at / "kept.bin"
    kept.write_bytes(bytes(4096))
    words = [sys.executable, "-c", LOCKING, str(kept)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdout.readline()
            far.hang()
            child.stdin.write("\n")
            child.stdin.flush()
            until(lambda: sorted(states(child.pid)) == ["D", "S"], "the thread that waits, and the first one's pause")
            found = process_table.read_process(child.pid)
            assert found is not None
            assert found.state == "S"
            yield found
        finally:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            far.go_on()


def states(pid: int) -> str:
    stats = (stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat"))
    return "".join(text.rpartition(")")[2].split()[0] for text in stats)


def test_of_a_process_whose_memory_is_locked_nothing_is_read_and_of_those_after_it_everything(
    locked: Process, far: HangingFs
) -> None:
    own = process_table.read_process(os.getpid())
    assert own is not None
    found = read_words([own, locked, own], "cmdline")
    assert found[own.pid] == Path("/proc/self/cmdline").read_bytes().split(b"\0")
    assert found[locked.pid] == []
    threads = threading.active_count()
    assert read_words([locked, own], "environ")[own.pid]
    assert threading.active_count() <= threads, "a process at which a reader hangs is not asked again"
    far.go_on()
    until(lambda: read_words([locked], "cmdline")[locked.pid] != [], "its command line")


def test_without_room_for_a_thread_the_others_are_read_and_of_that_process_nothing(locked: Process) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOM, str(locked.pid)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True []\n", done.stderr
