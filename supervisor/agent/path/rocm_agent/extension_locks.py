"""Takes away the lock of an extension whose compiler was killed with its training: torch would wait for it for ever.

`torch.utils.cpp_extension` locks a folder by a file that only its maker removes; DeepSpeed compiles optimizers so. A
lock names the process that holds it where this agent was in it; one without a name is left alone.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from functools import wraps

from .boot import read_boot_id
from .fence import fenced

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

MARK = "rocm-supervisor"
NAME_BYTES_MAX = 256
START_TIME_FIELD = 19
"""Of /proc/PID/stat, counted from 0 behind the command's name (proc_pid_stat(5))."""
TURN_TRIES, TURN_EVERY_S = 300, 0.01
"""How often, how far apart a process tries to have its turn at a lock, which takes the others a moment."""
REGULAR = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""For what may be no file: it does not wait at a pipe."""


def install(module: ModuleType) -> None:
    """Hook `torch.utils.file_baton`."""
    kind: Any = module.FileBaton
    original = kind.try_acquire

    @wraps(original)
    def try_acquire(self: Any) -> Any:
        return _acquire(self.lock_file_path, lambda: original(self))

    kind.try_acquire = try_acquire


def _acquire(path: str, acquire: Callable[[], Any]) -> Any:
    """Acquire a lock, one process of this machine after the other: what one takes away is no other's new lock."""
    try:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return acquire()
    try:
        if not _takes_turn(folder):
            return acquire()
        _remove_dead(path)
        held = acquire()
        if held:
            _name_holder(path)
        return held
    finally:
        _end_turn(folder)


@fenced
def _takes_turn(folder: int) -> bool:
    """Whether this process has its turn; one that is stopped in its own, or another program, may hold it for ever."""
    for _ in range(TURN_TRIES):
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(TURN_EVERY_S)
        except OSError:
            return True  # a file system that locks no folders: all go on as if each had its turn
    return False


def _end_turn(folder: int) -> None:
    with suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor too
    os.close(folder)


@fenced
def _remove_dead(path: str) -> None:
    try:
        with open(os.open(path, REGULAR)) as file:
            words = file.read(NAME_BYTES_MAX).split()
    except FileNotFoundError:
        return
    if words[:1] != [MARK]:
        return
    _, pid, *who = words
    # A process of another machine or container cannot be looked for from here.
    if who[1:] != _describe_place() or who == _describe_process(pid) or _is_hidden(int(pid)):
        return
    os.unlink(path)


@fenced
def _name_holder(path: str) -> None:
    pid = str(os.getpid())
    with open(path, "w") as file:
        file.write(" ".join([MARK, pid, *_describe_process(pid)]))


def _describe_process(pid: str) -> list[str]:
    """Return the start time of a process, empty where it has ended, and the place of this one."""
    try:
        with open("/proc/%d/stat" % int(pid)) as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["", *_describe_place()]
    return ["" if fields[0] in "ZX" else fields[START_TIME_FIELD], *_describe_place()]


def _is_hidden(pid: int) -> bool:
    """Whether a process lives whose entry in /proc is another user's to see (hidepid, proc(5))."""
    if os.path.exists("/proc/%d/stat" % pid):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _describe_place() -> list[str]:
    """Return the boot of this machine and the namespace of its processes."""
    return [read_boot_id(), os.readlink("/proc/self/ns/pid")]
