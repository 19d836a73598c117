"""A training that is killed while torch compiles an extension leaves a lock, for which the next one must not wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_by_hand import Attempt

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


def test_the_lock_of_a_killed_training_is_taken_by_one_of_the_next_ones_ranks(
    attempt: Attempt, train_python: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    attempt.run([train_python, "-c", PRELUDE + KILLED, lock])
    assert lock.exists()
    program = attempt.start([train_python, "-c", PRELUDE + RANKS, lock])
    assert program.stdout is not None
    words = [program.stdout.readline().strip() for _ in range(8)]
    (tmp_path / "lock.end").touch()
    program.wait()
    assert sorted(words) == ["held", *["waits"] * 7]
    assert not attempt.failures()


def test_a_lock_of_any_other_maker_is_left_alone(attempt: Attempt, train_python: Path, tmp_path: Path) -> None:
    finished = attempt.run([train_python, "-c", PRELUDE + LEFT_ALONE, tmp_path / "lock"])
    assert finished.code == 0, finished.output
