"""A training that is killed while torch compiles an extension leaves a lock, for which the next one must not wait."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from agent_by_hand import Attempt

from tests.rigs.warm import Warm

pytestmark = pytest.mark.train

PRELUDE = """
import os, signal, subprocess, sys
from torch.utils.file_baton import FileBaton
path = sys.argv[1]
"""
KILLED = """
assert FileBaton(path).try_acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""
RANKS = """
for _ in range(3):
    os.fork()
print("held" if FileBaton(path).try_acquire() else "waits", flush=True)
import time
while not os.path.exists(path + ".end"):  # its maker is no longer alive once it has ended
    time.sleep(0.01)
"""
LEFT_ALONE = """
def tries():
    return FileBaton(path).try_acquire()

open(path, "x").close()
assert not tries(), "its maker is not known"
os.unlink(path)
assert tries()
assert not tries(), "its maker lives"
words = open(path).read().split()
ended = subprocess.Popen(["true"])
ended.wait()
mark, _, start, boot, namespace = words
for place in (["another", namespace], [boot, "pid:[1]"]):
    open(path, "w").write(" ".join([mark, str(ended.pid), start, *place]))
    assert not tries(), "its maker is on another machine, or in another container"
open(path, "w").write(words[0] + " x y")
assert not tries(), "nothing is known of its maker"
"""


@pytest.fixture
def in_each(attempt: Attempt, train_python: Path, warm: Warm) -> Attempt:
    """An attempt of each environment in turn, whose programs import FileBaton under the agent."""
    attempt.warm = warm(train_python)
    return attempt


def test_the_lock_of_a_killed_training_is_taken_by_one_of_the_next_ones_ranks(
    in_each: Attempt, train_python: Path, tmp_path: Path
) -> None:
    """The next one is an interpreter that imports everything itself."""
    lock = tmp_path / "lock"
    in_each.run([train_python, "-c", PRELUDE + KILLED, lock])
    assert lock.exists()
    in_each.warm = None
    program = in_each.start([train_python, "-c", PRELUDE + RANKS, lock])
    assert program.stdout is not None
    words = [program.stdout.readline().strip() for _ in range(8)]
    (tmp_path / "lock.end").touch()
    program.wait()
    assert sorted(words) == ["held", *["waits"] * 7]
    assert not in_each.failures()


def test_a_lock_of_any_other_maker_is_left_alone(in_each: Attempt, train_python: Path, tmp_path: Path) -> None:
    finished = in_each.run([train_python, "-c", PRELUDE + LEFT_ALONE, tmp_path / "lock"])
    assert finished.code == 0, finished.output


def test_a_lock_that_is_a_pipe_is_not_waited_for(in_each: Attempt, train_python: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    program = PRELUDE + "assert not FileBaton(path).try_acquire()"
    finished = in_each.run([train_python, "-c", program, tmp_path / "lock"])
    assert finished.code == 0, finished.output
    assert not in_each.failures()


def test_who_holds_the_folder_for_ever_keeps_nobody_from_the_lock(
    in_each: Attempt, train_python: Path, tmp_path: Path
) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        finished = in_each.run(
            [train_python, "-c", PRELUDE + "assert FileBaton(path).try_acquire()", tmp_path / "lock"]
        )
    finally:
        os.close(folder)
    assert finished.code == 0, finished.output
    assert not in_each.failures()


FORKS = """
import threading
baton, forked = FileBaton(path), []
def fork():
    pid = os.fork()
    if not pid:
        signal.pause()
    forked.append(pid)
def slowly():
    fork()
    return True
from rocm_agent import extension_locks
assert extension_locks._acquire(path, slowly)
begin = __import__("time").monotonic()
assert not extension_locks._acquire(path, lambda: False)
took = __import__("time").monotonic() - begin
os.kill(forked[0], signal.SIGKILL)
assert took < 1.0, took
"""


def test_a_process_that_is_forked_meanwhile_holds_no_turn(in_each: Attempt, train_python: Path, tmp_path: Path) -> None:
    finished = in_each.run([train_python, "-c", PRELUDE + FORKS, tmp_path / "lock"])
    assert finished.code == 0, finished.output


HIDDEN = """
import ctypes, tempfile
from rocm_agent import extension_locks
maker = str(os.getppid())
words = [extension_locks.MARK, maker, *extension_locks._describe_process(maker)]
folder = tempfile.mkdtemp(dir=path)
os.chmod(folder, 0o777)
os.chmod(path, 0o755)
lock = os.path.join(folder, "lock")
open(lock, "w").write(" ".join(words))
os.chown(lock, 65534, 65534)
libc = ctypes.CDLL(None, use_errno=True)
# In a place of its own, where nobody sees the processes of others.
if (
    libc.unshare(0x20000)
    or libc.mount(None, b"/", None, 0x44000, None)
    or libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2")
):
    print("no mounts here")
    sys.exit()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
assert not os.path.exists("/proc/%s" % maker)
assert not FileBaton(lock).try_acquire(), "its maker lives"
open(lock, "w").write(" ".join([words[0], "4194301", *words[2:]]))
assert FileBaton(lock).try_acquire(), "no such process lives"
print("looked")
"""


@pytest.mark.mounts
def test_the_lock_of_another_users_process_that_proc_does_not_show_is_left_alone(
    attempt: Attempt, current_python: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts another /proc, for which it needs root")
    with tempfile.TemporaryDirectory() as place:
        finished = attempt.run([current_python, "-c", PRELUDE + HIDDEN, place])
    if "no mounts here" in finished.output:
        pytest.skip("no /proc can be mounted here")
    assert (finished.code, finished.output.strip()[-6:]) == (0, "looked"), finished.output
