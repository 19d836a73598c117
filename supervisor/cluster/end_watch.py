"""Reports ranks that have begun to end, before the kernel has freed their memory and their pidfd is ready.

What it waits for is memory that the agent of a rank shares (`rocm_agent/end_word.py`). The training can write there:
what comes of it is one look in /proc.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.children.prompt_thread import PromptThread
from supervisor.cluster.ranks import read_failure
from supervisor.core import attempt_files as names
from supervisor.runner.process_table import Process

LOOK_EVERY_S, LOOKS_MAX = 1.0, 60
"""How often, and how many times, the word of a rank is looked for: it is there once its interpreter has started."""
WORDS_MAX = 128
"""FUTEX_WAITV_MAX."""
FUTEX_WAITV, FUTEX2_SIZE_U32, CLOCK_MONOTONIC = 449, 2, 1
"""futex_waitv(2), since Linux 5.16; it has this number on every machine."""
HELD = 0x80000000
"""FUTEX_WAITERS: set by the agent once it holds the mutex."""
_LINK = f"/memfd:{names.END_WORD} (deleted)"
_WAITER, _TIMESPEC, _WORD = struct.Struct("=QQII"), struct.Struct("=qq"), struct.Struct("<I")
"""struct futex_waitv (value, address, flags, reserved); a time of CLOCK_MONOTONIC; the futex itself."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    process: Process
    looks: int = 0
    memory: mmap.mmap | None = None
    value: int = 0


class EndWatch:
    """One thread, while there are ranks to watch."""

    def __init__(self, put: Callable[[Process], None]) -> None:
        """`put` is called in that thread, once for a rank that ends by anything but status 0."""
        self._put = put
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._runs = False
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall

    def add(self, process: Process) -> None:
        """Watch a rank."""
        with self._lock:
            self._watched[process.pid] = _Watched(process=process)
            begins, self._runs = not self._runs, True
        if begins:
            PromptThread(self._run, "cluster-ends").start()

    def remove(self, process: Process) -> None:
        """Watch a rank no more."""
        with self._lock:
            self._watched.pop(process.pid, None)

    def _run(self) -> None:
        while watched := self._list_watched():
            held = [item for item in watched if _find_word(item)][:WORDS_MAX]
            if not held:
                time.sleep(LOOK_EVERY_S)
                continue
            for item in self._wait(held):
                item.memory = None  # a word is good for one look
                if read_failure(item.process) is not None:
                    self._put(item.process)

    def _list_watched(self) -> list[_Watched]:
        with self._lock:
            self._runs = bool(self._watched)
            return list(self._watched.values())

    def _wait(self, held: list[_Watched]) -> list[_Watched]:
        """Wait until a word is given up, LOOK_EVERY_S at most; return whose it is."""
        addresses = [ctypes.addressof(ctypes.c_char.from_buffer(item.memory or b"")) for item in held]
        waiters = b"".join(
            _WAITER.pack(item.value, address, FUTEX2_SIZE_U32, 0) for item, address in zip(held, addresses, strict=True)
        )
        until = time.perf_counter_ns() + int(LOOK_EVERY_S * 1e9)
        limit = _TIMESPEC.pack(*divmod(until, 10**9))
        woken = self._syscall(FUTEX_WAITV, waiters, len(held), 0, limit, CLOCK_MONOTONIC)
        if woken < 0 and ctypes.get_errno() == errno.ETIMEDOUT:
            return []
        given_up = [item for item in held if _read_word(item) != item.value]
        return given_up or ([held[woken]] if woken >= 0 else held)


def _find_word(item: _Watched) -> bool:
    """Look for the word of a rank where that is due; return whether there is one to wait for."""
    if item.memory is None and item.looks < LOOKS_MAX:
        item.looks += 1
        item.memory = _map_word(item.process.pid)
        item.value = _read_word(item)
        if item.memory is not None:
            if not item.value & HELD:
                item.memory = None
            else:
                item.looks = LOOKS_MAX
    return item.memory is not None


def _read_word(item: _Watched) -> int:
    return 0 if item.memory is None else int(_WORD.unpack_from(item.memory)[0])


def _map_word(pid: int) -> mmap.mmap | None:
    """Return the memory that a process shares under the name of the word; None where it has none."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        found = next((entry for entry in folder.iterdir() if _is_word(entry)), None)
        if found is None:
            return None
        file = os.open(found, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # Memory that can shrink would be SIGBUS in the daemon that reads it.
        sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        return mmap.mmap(file, names.END_WORD_BYTES) if sealed else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)


def _is_word(entry: Path) -> bool:
    try:
        return str(entry.readlink()) == _LINK
    except OSError:
        return False
