"""A thread that shares no descriptor with the rest of this process; the threads it starts have none of its files.

What a process forks gets a copy of every descriptor, and closes it, at the latest with its program's first step. To
close a file of FUSE or NFS its server is asked. While one does not answer under the record or a job's files, no child
could begin, and no restart of another job. Descriptors belong to a thread's file table in Linux, and children get that
of the thread that starts them.

Python's garbage collector may close files in whichever thread it runs, so it is not run while a child is started: in
such a thread it would close nothing, and the descriptor would be lost.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import gc
import itertools
import logging
import os
import queue
import socket
import threading
from collections.abc import Iterator, Sequence

from supervisor.children.child import Child
from supervisor.children.prompt_thread import PromptThread

log = logging.getLogger(__name__)

CLONE_FILES = 0x400
CLOSE_RANGE, CLOSE_RANGE_UNSHARE = 436, 2
"""close_range(2), the same number on every architecture."""
BEYOND_EVERY_FILE = 0x7FFFFFFF
SOCKET = 3
"""The descriptor in the thread's own table by which it receives those of a child."""
NUMBER_BYTES = 8
FILES = 3


class Keeper:
    """The thread, and the way to it."""

    def __init__(self) -> None:
        """Start it. Raises OSError where this system gives no thread a file table of its own."""
        self._calls: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._waiting: dict[int, Child] = {}
        self._numbers = itertools.count()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._apart, self._problem = threading.Event(), OSError()
        with theirs:
            threading.Thread(target=self._run, args=(theirs.fileno(),), name="child starter", daemon=True).start()
            self._apart.wait()
        if self._problem.errno:
            self._socket.close()
            raise self._problem

    def start(self, child: Child, files: Sequence[int], limit_s: float) -> bool:
        """Start a child with these descriptors as 0, 1 and 2; see `Child.wait_until_begun`."""
        number = next(self._numbers)
        self._waiting[number] = child
        try:
            with _COLLECTION.paused():
                name = number.to_bytes(NUMBER_BYTES, "big")
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
                self._socket.sendmsg([name], [rights], socket.MSG_DONTWAIT)
                self._calls.put(child)
                return child.wait_until_begun(limit_s)
        finally:
            self._waiting.pop(number, None)

    def _run(self, theirs: int) -> None:
        try:
            _leave_file_table()
            _close_all_but(theirs)
        except OSError as error:
            self._problem = error
            return
        finally:
            self._apart.set()
        while True:
            child = self._calls.get()
            try:
                PromptThread(self._start_child, "child").start()
            except (RuntimeError, MemoryError) as error:
                child.fail(OSError(errno.EAGAIN, str(error)))
            del child

    def _start_child(self) -> None:
        """Start the child of the next message in a table that only this thread has, and stay until it has ended."""
        with contextlib.suppress(OSError):  # the keeper's own has no file of the record either
            _leave_file_table()
        child, files = self._receive()
        if child is None:
            return
        begun = child.begin(files)
        for descriptor in files:
            os.close(descriptor)
        if begun:
            child.wait_and_report()

    def _receive(self) -> tuple[Child | None, Sequence[int]]:
        """Return a child that still waits, and its files: whichever, since each has a thread."""
        received = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM, fileno=SOCKET)
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC  # socket.recv_fds ignores them
        files = array.array("i")
        try:
            while True:
                name, rights, _, _ = received.recvmsg(NUMBER_BYTES, socket.CMSG_SPACE(FILES * files.itemsize), flags)
                files = array.array("i", rights[0][2] if rights else b"")
                child = self._waiting.pop(int.from_bytes(name, "big"), None)
                if child is not None:
                    return child, files
                for descriptor in files:
                    os.close(descriptor)
        except BlockingIOError:
            return None, ()
        finally:
            received.detach()


class _Collection:
    """Pauses the garbage collector while any child is started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0
        self._was_on = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause it within the context."""
        with self._lock:
            if self._pauses == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._pauses += 1
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if self._pauses == 0 and self._was_on:
                    gc.enable()


_COLLECTION = _Collection()


def _leave_file_table() -> None:
    """Give the calling thread a copy of the file table, which it alone has. Raises OSError where that is refused.

    Containers often refuse unshare(2), for what else it can do, and allow close_range(2), which can do that as well.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_FILES) == 0:
        return
    reason = ctypes.get_errno()
    last = ctypes.c_uint(0xFFFFFFFF)
    if libc.syscall(CLOSE_RANGE, ctypes.c_uint(BEYOND_EVERY_FILE), last, CLOSE_RANGE_UNSHARE) != 0:
        raise OSError(reason, f"no file table of its own for a thread: {os.strerror(reason)}")


def _close_all_but(theirs: int) -> None:
    """Keep a socket, as SOCKET, and the null device as 0, 1 and 2: standard error may be a file that is hung later."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    kept = os.dup(theirs)  # SOCKET may be either of the two
    for descriptor in range(SOCKET):
        os.dup2(null, descriptor)
    os.dup2(kept, SOCKET, inheritable=False)
    os.closerange(SOCKET + 1, os.sysconf("SC_OPEN_MAX"))
