"""The process that works on files for the daemon: each question in a thread of its own, each answer by its number.

A thread that waits for a file system beyond SIGKILL keeps its process from ending: here that process is this one.
The kernel ends it when the daemon has ended: the pipe from it may still be held open, by what the daemon has forked or
by what is left of itself in the kernel. It imports what it is asked for, and until then as little as it can; after an
upgrade it imports no more, since the daemon is of the version before.
"""

from __future__ import annotations

import _queue
import _thread
import ctypes
import io
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

HEAD_BYTES = 12
NUMBER_BYTES = 8
QUESTIONS, ANSWERS = 0, 1
"""Descriptors."""
PR_SET_PDEATHSIG = 1


def pack(number: int, body: bytes) -> bytes:
    """Return one message: its number, its length, its content."""
    return number.to_bytes(NUMBER_BYTES, "little") + len(body).to_bytes(HEAD_BYTES - NUMBER_BYTES, "little") + body


def read_message(stream: BinaryIO) -> tuple[int, bytes] | None:
    """Return the next message; None at the end of the stream."""
    head = stream.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    size = int.from_bytes(head[NUMBER_BYTES:], "little")
    body = stream.read(size)
    return (int.from_bytes(head[:NUMBER_BYTES], "little"), body) if len(body) == size else None


def write_fully(descriptor: int, message: bytes) -> None:
    """Write all of a message to a pipe. Raises OSError where it has no reader."""
    left = memoryview(message)
    while left:
        left = left[os.write(descriptor, left) :]


class Threads:
    """As many threads as questions are open; one that is idle takes the next."""

    def __init__(self, answer: Callable[[int, bytes], None]) -> None:
        self._answer = answer
        self._questions: _queue.SimpleQueue[tuple[int, bytes]] = _queue.SimpleQueue()
        self._lock = _thread.allocate_lock()
        self._idle = 0

    def take(self, number: int, body: bytes) -> None:
        """Have a question answered; it never waits behind one that hangs."""
        with self._lock:
            needed = self._idle == 0
            self._idle -= not needed
        if needed:
            _thread.start_new_thread(self._work, ())
        self._questions.put((number, body))

    def _work(self) -> None:
        while True:
            self._answer(*self._questions.get())
            with self._lock:
                self._idle += 1


def identify(file: str) -> str | None:
    """Return what changes when a file is replaced; None where it is not there, as for a moment of an upgrade."""
    try:
        found = os.stat(file)  # noqa: PTH116 - pathlib is a megabyte of this process
    except OSError:
        return None
    return f"{found.st_dev} {found.st_ino} {found.st_mtime_ns}"


class _OtherVersionError(Exception):
    """What is asked for would be imported from another version than the daemon's."""


class _Questions(pickle.Unpickler):
    """Finds what a question names: imported here, or else in the package as long as that is the daemon's version."""

    def __init__(self, body: bytes, is_replaced: Callable[[], bool]) -> None:
        super().__init__(io.BytesIO(body))
        self._is_replaced = is_replaced

    def find_class(self, module: str, name: str) -> Any:
        """Return what has a name in a module. Raises _OtherVersionError."""
        if module not in sys.modules and self._is_replaced():
            raise _OtherVersionError(f"{module} is to be imported, and the package was replaced")
        return super().find_class(module, name)


def answer_to(body: bytes, is_replaced: Callable[[], bool]) -> bytes:
    """Do what a question asks for; return whether that succeeded, and its value or its error.

    Neither, with the reason, where that would import another version.
    """
    try:
        work, given, named = _Questions(body, is_replaced).load()
        return pickle.dumps((True, work(*given, **named)))
    except _OtherVersionError as error:
        return pickle.dumps((None, str(error)))
    except Exception as error:  # noqa: BLE001 - raised where it was asked
        return _pack_error(error)


def _pack_error(error: Exception) -> bytes:
    """Return an error as an answer; one that cannot be taken apart and put together again by its description."""
    packed = pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    try:
        packed_error = pickle.dumps((False, error))
        pickle.loads(packed_error)  # noqa: S301 - the line above
    except Exception:  # noqa: BLE001 - its class may do anything
        return packed
    return packed_error


def serve(root: str, mark: str, version: str) -> None:
    """Answer until the daemon has ended; the thread that started this process stays as long as it (`Child`).

    `version` is what `identify` returned of the file `mark` below `root` when the daemon began.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    writing = _thread.allocate_lock()

    def answer(number: int, body: bytes) -> None:
        message = pack(number, answer_to(body, lambda: identify(f"{root}/{mark}") != version))
        with writing:
            try:
                write_fully(ANSWERS, message)
            except OSError:
                os._exit(0)

    threads = Threads(answer)
    with os.fdopen(QUESTIONS, "rb") as questions:
        while (message := read_message(questions)) is not None:
            _take(threads, message, answer)
    os._exit(0)


def _take(threads: Any, message: tuple[int, bytes], answer: Callable[[int, bytes], None]) -> None:
    try:
        threads.take(*message)
    except RuntimeError as error:  # no room for another thread
        answer(message[0], pickle.dumps((fail, (str(error),), {})))


def fail(why: str) -> None:
    """Report that a question could not be taken."""
    raise OSError(why)
