"""The processes of this machine as /proc shows them, and signals that reach no later process with the same pid.

Used by shim.py in its process: imports only the standard library.
"""

# ruff: noqa: PTH123, PTH208 - as in shim.py: memory for life

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # typing is memory for life
if TYPE_CHECKING:
    from collections.abc import Iterable

PF_EXITING = 1 << 2
"""Of the flags in /proc/PID/stat: the thread has begun to end; what memory it has is freed after that."""


class Process:
    """One process as /proc/PID/stat describes it."""

    __slots__ = ("ending", "parent", "pid", "session", "start_ticks", "state", "terminal")

    def __init__(self, pid: int, state: str, parent: int, session: int, start_ticks: int) -> None:
        self.pid, self.state, self.parent, self.session, self.start_ticks = pid, state, parent, session, start_ticks
        self.terminal = 0
        self.ending = False

    @property
    def dead(self) -> bool:
        """Whether it has ended and only waits to be reaped."""
        return self.state in "ZX"


def read_process(pid: int) -> Process | None:
    """Return a process as /proc describes it; None if there is none with this pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name may contain spaces and parentheses: the other fields follow the last parenthesis.
            fields = file.read().rpartition(b")")[2].split()
        found = Process(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))
        found.terminal, found.ending = int(fields[4]), bool(int(fields[6]) & PF_EXITING)
    except (OSError, ValueError, IndexError):
        return None
    return found


def read_living(process: Process) -> Process | None:
    """Return a process as it is now; None where it has ended, or another has its pid."""
    now = read_process(process.pid)
    return None if now is None or now.start_ticks != process.start_ticks or now.dead else now


def read_inner_pid(pid: int) -> int:
    """Return the pid by which a process knows itself, which is another one in a container."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return int(file.read().partition(b"\nNSpid:")[2].partition(b"\n")[0].split()[-1])
    except (OSError, ValueError, IndexError):
        return pid


def read_processes() -> list[Process]:
    """Return every process of the machine."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def descendants(root: int, processes: Iterable[Process]) -> list[Process]:
    """Return the descendants of `root`, parents before children, without those that wait to be reaped."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, ()))
    for process in found:  # grows while it is walked
        found.extend(children.get(process.pid, ()))
    return [process for process in found if not process.dead]


def send(process: Process, *numbers: int) -> bool:
    """Send signals to a process, not to a later one with the same pid; return whether it was running."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.start_ticks != process.start_ticks:
            return False
        for number in numbers:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; without a handler most signals end it."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            line = next(line for line in file if line.startswith(b"SigCgt:"))
        return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
