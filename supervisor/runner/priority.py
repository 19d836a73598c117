"""Lowers the CPU priority of a process, makes it the OOM killer's first choice, and restores both.

Used by standby_shim.py in the shim's process: standard library alone.
It takes nothing that this user could not give back.
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
    """Let the training go first, at a processor and when memory runs out, as far as this can be taken back."""
    if _comes_back(_nice, LOWEST, os.getpriority(os.PRIO_PROCESS, 0)):
        _nice(LOWEST)
    if _comes_back(_place, FIRST_TO_GO, _oom_place()):
        _place(FIRST_TO_GO)


def _comes_back(setting: Callable[[Any], None], there: object, back: object) -> bool:
    """Whether a process of this user may undo it: tried by a child of its own."""
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
    """Give every thread of the interpreter what this process has."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            _nice(os.getpriority(os.PRIO_PROCESS, 0), int(thread))
        except ProcessLookupError:
            pass
    if _oom_place(str(pid)) != _oom_place():
        _place(_oom_place(), str(pid))


def _nice(level: int, thread: int = 0) -> None:
    if os.getpriority(os.PRIO_PROCESS, thread) != level:
        os.setpriority(os.PRIO_PROCESS, thread, level)


def _oom_place(pid: str = "self") -> bytes:
    with open(f"/proc/{pid}/oom_score_adj", "rb") as file:
        return file.read().strip()


def _place(score: bytes, pid: str = "self") -> None:
    with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:
        file.write(score)
