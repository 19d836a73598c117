"""Which sleeping processes of a tree are woken from outside of it, with real processes, sockets and timers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.sources.outside_waits import OutsideWatch

LIMIT_S = 60.0
LISTENS = "import socket; server = socket.create_server(('127.0.0.1', 0))\n"
SERVES = LISTENS + "print(server.getsockname()[1], flush=True)\nkept = [server.accept() for _ in range(9)]"
ASKS = "import socket, sys; peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
PAUSES = "import time; print('up', flush=True); time.sleep(600)"
LOOKS_AGAIN = "import time; print('up', flush=True)\nwhile True: time.sleep(0.02)"
DEADLOCK = "import threading; lock = threading.Lock(); lock.acquire(); print('up', flush=True); lock.acquire()"
WAITS = "print('up', flush=True); peer.recv(1)"
WITH_TIMEOUT = "peer.settimeout(300); print('up', flush=True); peer.recv(1)"
IN_THREAD = """
import threading
asking = threading.Thread(target=peer.recv, args=(1,))
asking.start()
print('up', flush=True)
asking.join()
"""
FAMILY = (
    LISTENS
    + """
import os
child = os.fork()
if child == 0:
    taken, _ = server.accept()
    taken.recv(1)
    os._exit(0)
print(child, flush=True)
peer = socket.create_connection(server.getsockname())
peer.recv(1)
"""
)

pytestmark = pytest.mark.slow


@contextmanager
def running(program: str, *words: str) -> Iterator[tuple[int, str]]:
    """Yield the number of a process and the first line that it printed."""
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def serving() -> Iterator[str]:
    """Yield the port of a server that takes connections and never answers."""
    with running(SERVES) as (_, port):
        yield port


def channel(pid: int) -> str:
    return Path(f"/proc/{pid}/wchan").read_text()


def read(pids: list[int], tree: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the second of two readings finds, once the processes have come to rest."""
    end = time.monotonic() + LIMIT_S  # noqa: TID251 - a test's deadline
    before: list[str] = []
    while before != (before := [channel(pid) for pid in pids]) or "0" in before:
        assert time.monotonic() < end, before  # noqa: TID251 - the same
        time.sleep(0.05)
    watch = OutsideWatch()
    watch.read(pids, tree)
    time.sleep(0.1)
    return watch.read(pids, tree)


def test_a_program_that_pauses_sleeps_by_a_timer() -> None:
    with running(PAUSES) as (pid, _):
        assert read([pid], [pid]) == ((pid,), ())


@pytest.mark.parametrize("program", [LOOKS_AGAIN, DEADLOCK], ids=["looks again and again", "waits for a lock"])
def test_what_looks_again_and_again_or_waits_for_itself_is_not_woken(program: str) -> None:
    with running(program) as (pid, _):
        assert read([pid], [pid]) == ((), ())


@pytest.mark.parametrize("way", [WAITS, WITH_TIMEOUT, IN_THREAD], ids=["at once", "with a timeout", "in a thread"])
def test_who_waits_for_the_answer_of_a_server_is_woken_by_it(way: str) -> None:
    with serving() as port, running(ASKS + way, port) as (pid, _):
        assert read([pid], [os.getpid(), pid]) == ((), (pid,))


def test_an_open_connection_that_is_not_waited_for_wakes_nothing() -> None:
    with serving() as port, running(ASKS + DEADLOCK, port) as (pid, _):
        assert read([pid], [pid]) == ((), ())


def test_processes_of_one_tree_that_wait_for_each_other_are_woken_by_none() -> None:
    with running(FAMILY) as (pid, child):
        assert read([pid, int(child)], [pid, int(child)]) == ((), ())
        assert read([pid], [pid]) == ((), (pid,)), "as soon as the other end is another's"


def test_a_process_that_has_ended_is_none() -> None:
    with running(PAUSES) as (pid, _):
        pass
    assert OutsideWatch().read([pid], [pid]) == ((), ())
