"""The process tree, with real processes."""

from __future__ import annotations

import ctypes
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from supervisor.core.moments import Moment
from supervisor.core.rules.rest import RESTS_SWITCHES_PER_S
from supervisor.sources import processes
from supervisor.sources.processes import TreeWatch, pids_below

pytestmark = pytest.mark.slow

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
TREE = """
import subprocess, sys
program = "import sys; data = bytearray(32 << 20); print('up', flush=True); sys.stdin.read()"
command, pipe = [sys.executable, "-c", program], subprocess.PIPE
children = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in "ab"]
for child in children: child.stdout.readline()
print("up", flush=True)
for line in sys.stdin:
    if line == "spin\\n":
        import time
        end = time.process_time() + 0.3
        while time.process_time() < end: pass
        print("spun", flush=True)
"""


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    try:
        yield process
    finally:
        process.communicate("", timeout=120)


def now() -> Moment:
    return Moment(time.perf_counter(), 1_700_000_000.0)


def test_the_whole_tree_is_counted_and_weighed() -> None:
    with running(TREE) as root:
        reading = TreeWatch(root.pid).read(now())
        assert reading.processes == 3
        assert reading.rss_bytes is not None
        assert reading.rss_bytes > 2 * (32 << 20)
        assert (reading.cpu_percent, reading.uninterruptible_pids) == (None, ())


def test_a_process_that_is_stopped_is_named_until_it_goes_on() -> None:
    with running(TREE) as root:
        os.kill(root.pid, signal.SIGSTOP)
        try:
            end = time.perf_counter() + 120
            while not (reading := TreeWatch(root.pid).read(now())).stopped_pids:
                assert time.perf_counter() < end
            assert (reading.stopped_pids, reading.traced_pids, reading.terminal_pids) == ((root.pid,), (), ())
            assert reading.uninterruptible_pids == ()
        finally:
            os.kill(root.pid, signal.SIGCONT)
        end = time.perf_counter() + 120
        while TreeWatch(root.pid).read(now()).stopped_pids:
            assert time.perf_counter() < end


def test_a_stopped_process_with_a_terminal_is_distinguished_from_one_without() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
    try:
        assert b"up" in os.read(terminal, 100)
        os.kill(child, signal.SIGSTOP)
        os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
        reading = TreeWatch(child).read(now())
        assert (reading.stopped_pids, reading.traced_pids, reading.terminal_pids) == ((child,), (), (child,))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def test_a_process_that_a_debugger_holds_is_distinguished_from_one_that_a_signal_has_stopped() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with running(TREE) as root:
        if libc.ptrace(PTRACE_ATTACH, root.pid, None, None):
            pytest.skip(f"this machine lets no process be traced: {os.strerror(ctypes.get_errno())}")
        try:
            os.waitid(os.P_PID, root.pid, os.WSTOPPED | os.WNOWAIT)
            reading = TreeWatch(root.pid).read(now())
            assert (reading.stopped_pids, reading.traced_pids) == ((root.pid,), (root.pid,))
        finally:
            libc.ptrace(PTRACE_DETACH, root.pid, None, None)


TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
CONT, SEIZE, LISTEN, SIGSTOP = 7, 0x4206, 0x4208, 19
pid = int(sys.argv[1])
print(libc.ptrace(SEIZE, pid, None, None), flush=True)
os.waitpid(pid, 0x40000000)
libc.ptrace(CONT, pid, None, SIGSTOP)
os.waitpid(pid, 0x40000000)
libc.ptrace(LISTEN, pid, None, None)
if sys.argv[2] == "for its user":
    sys.stdin.read()
if sys.argv[2] == "for a command":
    os.system("read line")
os.waitpid(pid, 0x40000000)
"""
"""As strace does: it hands a stop by a signal on, and waits for what comes next. A debugger waits for its user."""


@pytest.mark.parametrize("waits", ["for what it traces", "for its user", "for a command"])
def test_a_process_that_a_signal_has_stopped_under_strace_is_not_held_by_it(waits: str) -> None:
    command = [sys.executable, "-c", TRACER]
    with (
        running(TREE) as root,
        subprocess.Popen(
            [*command, str(root.pid), waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as tracer,
    ):
        try:
            assert tracer.stdout is not None
            if tracer.stdout.readline() != "0\n":
                pytest.skip("this machine lets no process be traced")
            os.kill(root.pid, signal.SIGSTOP)
            held = () if waits == "for what it traces" else (root.pid,)
            end = time.perf_counter() + 120
            while (reading := TreeWatch(root.pid).read(now())).stopped_pids != (root.pid,) or (
                reading.traced_pids != held or not is_asleep(tracer.pid)
            ):
                assert time.perf_counter() < end, reading
            os.kill(root.pid, signal.SIGCONT)
            while not held and TreeWatch(root.pid).read(now()).stopped_pids:
                assert time.perf_counter() < end
        finally:
            tracer.kill()


def is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_processor_use_is_that_of_the_interval() -> None:
    with running(TREE) as root:
        assert root.stdin is not None
        assert root.stdout is not None
        watch, started = TreeWatch(root.pid), now()
        assert watch.read(started).cpu_percent is None
        root.stdin.write("spin\n")
        root.stdin.flush()
        assert root.stdout.readline() == "spun\n"
        second = watch.read(started.plus(1.0))
        busy = second.cpu_percent
        assert busy is not None
        assert 25 <= busy <= 60
        assert (first := second.largest[0]).pid == root.pid
        assert first.cpu_percent is not None
        assert first.cpu_percent >= 25
        assert len(second.largest) == 3
        idle = watch.read(started.plus(2.0)).cpu_percent
        assert idle is not None
        assert idle < 15


def test_a_tree_that_is_gone_has_no_processes_and_no_numbers() -> None:
    with running(TREE) as root:
        watch = TreeWatch(root.pid)
        assert watch.read(now()).processes == 3
    reading = watch.read(now())
    assert (reading.processes, reading.rss_bytes, reading.cpu_percent) == (0, None, None)
    assert TreeWatch(-1).read(now()).processes == 0
    assert TreeWatch(2**40).read(now()).processes == 0


def test_it_lists_what_is_alive_and_no_zombies() -> None:
    with running(TREE) as process:
        reading = TreeWatch(process.pid).read(Moment(0.0, 0.0))
        assert reading.pids is not None
        assert len(reading.pids) == 3
        assert reading.pids[0] == process.pid
    assert TreeWatch(process.pid).read(Moment(0.0, 0.0)).pids is None


def test_a_child_that_has_ended_and_was_not_waited_for_is_not_alive() -> None:
    program = "import os, sys\nif os.fork() == 0: os._exit(0)\nprint('up', flush=True)\nsys.stdin.read()"
    with running(program) as process:
        deadline = time.perf_counter() + 120
        while (pids := TreeWatch(process.pid).read(Moment(0.0, 0.0)).pids) != (process.pid,):
            assert time.perf_counter() < deadline, pids


WAITING = """
import sys, threading, time
print("up", flush=True)
mode = sys.stdin.readline().strip()
print("in", flush=True)
if mode == "lock":
    threading.Thread(target=lambda: sys.stdin.read() or lock.release()).start()
    lock = threading.Lock(); lock.acquire(); lock.acquire()
else:
    while mode == "polls" and not sys.stdin.closed:
        time.sleep(0.01)
        import select
        if select.select([sys.stdin], [], [], 0)[0]: break
"""


def comes_to(mode: str, wanted: Callable[[float], bool]) -> bool:
    """Whether a program's tree is soon read to be scheduled as often as wanted, while it waits in `mode`."""
    with running(WAITING) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{mode}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "in\n"
        watch, woken = TreeWatch(process.pid), threading.Event()
        end = time.perf_counter() + 60
        while time.perf_counter() < end:  # what it did on its way into the wait is no wait
            found = watch.read(now()).switches_per_s
            if found is not None and wanted(found):
                return True
            woken.wait(0.3)
    return False


def test_a_process_that_waits_for_a_lock_is_not_scheduled_and_one_that_polls_is() -> None:
    assert comes_to("lock", lambda per_s: per_s <= RESTS_SWITCHES_PER_S)
    assert comes_to("polls", lambda per_s: per_s > RESTS_SWITCHES_PER_S)


def test_each_process_is_read_with_its_parent() -> None:
    with running(TREE) as root:
        parents = dict(TreeWatch(root.pid).read(now()).parents)
        assert list(parents.values()).count(root.pid) == 2
        assert parents[root.pid] == os.getpid()


DEEP = """
import subprocess, sys, threading
deep = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=-1);"
deep += "print('up', flush=True); sys.stdin.read(); p.communicate()"
def start():
    global child
    child = subprocess.Popen([sys.executable, "-c", deep], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    ready.set()
    over.wait()
ready, over = threading.Event(), threading.Event()
threading.Thread(target=start).start()
ready.wait()
print("up", flush=True)
sys.stdin.read()
over.set()
child.communicate()
"""


def test_the_children_of_every_thread_are_listed_parents_first_as_the_whole_of_proc_reports_them() -> None:
    with running(DEEP) as root:
        below = pids_below(root.pid)
        if below is None:
            pytest.skip("this kernel lists no children (CONFIG_PROC_CHILDREN)")
        assert below == [child.pid for child in psutil.Process(root.pid).children(recursive=True)]
        assert len(below) == 2


def test_where_the_kernel_lists_no_children_every_process_is_asked_for_its_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert pids_below(os.getpid(), tmp_path) is None
    monkeypatch.setattr(processes, "pids_below", lambda _pid: None)
    with running(DEEP) as root:
        assert TreeWatch(root.pid).read(now()).processes == 3


def test_a_process_that_the_kernel_leaves_out_of_a_list_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(DEEP) as root:
        tree = TreeWatch(root.pid)
        whole = tree.read(now())
        monkeypatch.setattr(processes, "pids_below", lambda _pid: [])
        assert tree.read(now()).pids == whole.pids
        assert whole.processes == 3


def test_a_process_that_ended_is_in_no_later_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(TREE) as root:
        tree = TreeWatch(root.pid)
        pids = tree.read(now()).pids
        assert pids is not None
        victim = psutil.Process(pids[1])
        victim.kill()
        while victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
            os.sched_yield()
        assert tree.read(now()).pids == (pids[0], pids[2])


@pytest.mark.skipif(os.geteuid() != 0, reason="reads as another user, for which it must be root")
@pytest.mark.parametrize("kind", ["timer", "peer"])
def test_of_another_users_tree_the_shims_name_shows_who_is_woken_from_outside(kind: str) -> None:
    shows = f"open('/proc/self/comm', 'w').write('{kind} ' + str(os.getpid()))"
    with running(f"import os, sys; {shows}; print('up', flush=True); sys.stdin.read()") as shim:
        reader = os.fork()
        if reader == 0:
            os.setuid(65534)
            watch = TreeWatch(shim.pid)
            watch.read(Moment(0.0, 0.0))
            seen = watch.read(Moment(1.0, 1.0))
            expected = ((shim.pid,), ()) if kind == "timer" else ((), (shim.pid,))
            os._exit(0 if (seen.timed_pids, seen.asking_pids) == expected else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0
