"""Lowers the CPU priority of a process, makes it the OOM killer's first choice, and restores both.

Used by standby_shim.py in the shim's process: imports only the standard library.
A value is changed only if this user is allowed to restore it.
"""

# ruff: noqa: PTH123, PTH208, SIM105 - as in shim.py: memory for life

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing is memory for life
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LOWEST = 19
FIRST_TO_GO = b"1000"


def lower() -> None:
    """Lower the CPU priority and raise the OOM score, each only if this user can restore it."""
    if _can_undo(_set_nice, LOWEST, os.getpriority(os.PRIO_PROCESS, 0)):
        _set_nice(LOWEST)
    if _can_undo(_set_oom_score, FIRST_TO_GO, _read_oom_score()):
        _set_oom_score(FIRST_TO_GO)


def _can_undo(setting: Callable[[Any], None], there: object, back: object) -> bool:
    """Whether this user can undo a setting: tried in a child process."""
    pid = os.fork()
    if pid == 0:
        try:
            setting(there)
            setting(back)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def give_back(pid: int) -> None:
    """Give every thread of the interpreter this process's priority and OOM score."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            _set_nice(os.getpriority(os.PRIO_PROCESS, 0), int(thread))
        except ProcessLookupError:
            pass
    if _read_oom_score(str(pid)) != _read_oom_score():
        _set_oom_score(_read_oom_score(), str(pid))


def _set_nice(level: int, thread: int = 0) -> None:
    if os.getpriority(os.PRIO_PROCESS, thread) != level:
        os.setpriority(os.PRIO_PROCESS, thread, level)


def _read_oom_score(pid: str = "self") -> bytes:
    with open(f"/proc/{pid}/oom_score_adj", "rb") as file:
        return file.read().strip()


def _set_oom_score(score: bytes, pid: str = "self") -> None:
    with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:
        file.write(score)
