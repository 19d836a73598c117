"""A file system that can be told to hang, to sync slowly or to fail: FUSE over a real folder whose names it shows.

A stand-in for NFS whose server is gone: while it hangs, whoever asks anything of it waits, and only SIGKILL or its
answer ends that; or for a device in reset, where SIGKILL does not end it either. For a worn disk: `sync_s` is how long
each fsync takes. For a broken one: `failure` is the errno that every write and fsync gets, and with `all_fails`
everything that is asked. It serves names, attributes, links, and reading and writing of files: as much as a state
directory needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import queue
import select
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

IN_HEADER = struct.Struct("<IIQQIIII")
OUT_HEADER = struct.Struct("<IiQ")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, RENAME, OPEN, READ, WRITE = 1, 2, 3, 4, 9, 10, 12, 14, 15, 16
READLINK, SYMLINK, RMDIR, LINK = 5, 6, 11, 13
STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = 17, 18, 20, 25, 26, 27, 28, 29
INTERRUPT, CREATE, BATCH_FORGET, RENAME2 = 36, 35, 42, 45
FREED = (INIT, RELEASE, RELEASEDIR, FLUSH)
"""What is answered however broken the disk is: nothing on it is needed for that."""
DIRECT = 1
"""Nothing of the file is kept in the page cache (FOPEN_DIRECT_IO)."""
KEPT = 2
"""What is kept of it stays over an open (FOPEN_KEEP_CACHE), as on a disk: whoever maps it keeps its pages."""
BIG_WRITES = 1 << 5
"""What is written at once is one request of up to 64 KiB, as libfuse has it, and not one for each page."""
FORCED, DETACHED = 1, 2
"""Of umount2(2): MNT_FORCE and MNT_DETACH."""
BUFFER_BYTES = (1 << 17) + 4096
END_LIMIT_S = 10.0
ROOT = 1


Served = TypeVar("Served", bound="HangingFs")


class HangingFs:
    """The server of one mount; `hang` and `go_on` are its switch."""

    def __init__(self, real: Path, at: Path, *, asked_on_close: bool = True) -> None:
        self.real, self.at, self.asked_on_close = real, at, asked_on_close
        self._answering = threading.Event()
        self._answering.set()
        self._paths: dict[int, Path] = {ROOT: real}
        self._numbers: dict[Path, int] = {real: ROOT}
        self._new_numbers = itertools.count(ROOT + 1)
        self._files: dict[int, int] = {}
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._ended = False
        options = f"fd={self._device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"hanging", os.fsencode(at), b"fuse.hanging", 0, options.encode()) != 0:
            os.close(self._device)
            raise OSError(ctypes.get_errno(), "no FUSE here")
        self.held = 0
        self.waiting = False
        """Whether a request has been taken from the kernel that was not answered at once."""
        self.sync_s = 0.0
        self.failure: int | None = None
        self.all_fails = False
        self.failed = 0
        """Requests that were answered with `failure`."""
        self.synced = 0
        self.written = 0
        """Requests to write."""
        self._take_all = False
        self._taken: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._handed_over = self._served = 0
        """Of that queue: each is counted by one thread alone."""
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._take, self._serve)]
        for thread in self._threads:
            thread.start()
        at.stat()  # until the kernel has been told of what is served, SIGKILL ends who waits

    def hang(self, *, beyond_sigkill: bool = False) -> None:
        """Answer nothing from here on."""
        self._take_all = beyond_sigkill
        self._answering.clear()

    def go_on(self) -> None:
        """Answer what waits, and whatever comes."""
        self._answering.set()

    def end(self) -> None:
        """Unmount: who still waits is told that the file system is gone. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        # Not by a command: before its child executes it, it closes what this process has open here, which asks this
        # server, whose threads wait until the child has executed the command.
        ctypes.CDLL(None).umount2(os.fsencode(self.at), FORCED | DETACHED)
        self.go_on()
        for thread in self._threads:
            thread.join(END_LIMIT_S)
        # Not while a thread may still use it: the number may be that of another file by then.
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self._device)

    def _take(self) -> None:
        asked = select.poll()
        asked.register(self._device, select.POLLIN)
        while True:
            asked.poll()
            if not self._answering.is_set() and not self._take_all:
                self.held += 1  # left with the kernel: of what was taken from it nobody's wait ends by SIGKILL
                self._answering.wait()
            try:
                request = os.read(self._device, BUFFER_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                self._taken.put(None)
                return
            if self._handed_over == self._served and self._answering.is_set():
                self._handle(request)  # without waking the other thread: half of what a request takes
                continue
            self._handed_over += 1
            self._taken.put(request)
            self.held += not self._answering.is_set()

    def _serve(self) -> None:
        while (request := self._taken.get()) is not None:
            self.waiting |= not self._answering.is_set()
            self._answering.wait()
            self._handle(request)
            self._served += 1

    def _handle(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        if opcode == FSYNC and self.sync_s > 0:
            self.synced += 1
            threading.Timer(self.sync_s, self._reply, (opcode, unique, node, request)).start()
        else:
            self._reply(opcode, unique, node, request)

    def _reply(self, opcode: int, unique: int, node: int, request: bytes) -> None:
        self.written += opcode == WRITE
        try:
            if self.failure is not None and (
                opcode in (WRITE, CREATE, FSYNC) or (self.all_fails and opcode not in FREED)
            ):
                self.failed += 1
                raise OSError(self.failure, os.strerror(self.failure))
            self._refuse_deadlock(opcode, node, request)
            answer, failed = self._answer(opcode, node, request[IN_HEADER.size :]), 0
        except OSError as error:
            answer, failed = b"", error.errno or errno.EIO
        with contextlib.suppress(OSError):  # whoever asked is gone
            os.write(self._device, OUT_HEADER.pack(OUT_HEADER.size + len(answer), -failed, unique) + answer)

    def _refuse_deadlock(self, opcode: int, node: int, request: bytes) -> None:
        """Raise OSError where this process opens a database through itself: a page fault of its would wait for it."""
        path, thread = self._paths.get(node, self.real), IN_HEADER.unpack_from(request)[6]
        if opcode == OPEN and path.name.endswith("-shm") and Path(f"/proc/self/task/{thread}").exists():
            raise OSError(errno.EDEADLK, "a database is opened in the process that serves it")

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:  # noqa: C901, PLR0912 - one arm a request
        path = self._paths.get(node, self.real)
        if opcode == INIT:
            return struct.pack(
                "<IIIIHHIIHHIIIIII", 7, 31, 1 << 16, BIG_WRITES, 12, 9, 1 << 16, 1, 0, 0, 0, 0, 0, 0, 0, 0
            )
        if opcode == LOOKUP:
            return self._entry(path / _name(body))
        if opcode == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + _attributes(path)
        if opcode == SETATTR:
            return self._set(path, body)
        if opcode == MKDIR:
            (path / _name(body[8:])).mkdir()
            return self._entry(path / _name(body[8:]))
        if opcode == UNLINK:
            (path / _name(body)).unlink()
            return b""
        if opcode == RMDIR:
            (path / _name(body)).rmdir()
            return b""
        if opcode == READLINK:
            return os.fsencode(path.readlink())
        if opcode == SYMLINK:
            name, target = (os.fsdecode(text) for text in body.split(b"\0")[:2])
            (path / name).symlink_to(target)
            return self._entry(path / name)
        if opcode == LINK:
            made = path / _name(body[8:])
            made.hardlink_to(self._paths[struct.unpack_from("<Q", body)[0]])
            return self._entry(made)
        if opcode in (RENAME, RENAME2):
            self._rename(path, body[16 if opcode == RENAME2 else 8 :], struct.unpack_from("<Q", body)[0])
            return b""
        if opcode == OPEN:
            return self._opened(path, struct.unpack_from("<I", body)[0] & ~os.O_CREAT)
        if opcode == CREATE:
            made = path / _name(body[16:])
            opened = self._opened(made, struct.unpack_from("<I", body)[0] | os.O_CREAT)
            return self._entry(made) + opened
        if opcode == READ:
            handle, offset, size = struct.unpack_from("<QQI", body)
            return os.pread(self._files[handle], size, offset)
        if opcode == WRITE:
            handle, offset, size = struct.unpack_from("<QQI", body)
            return struct.pack("<II", os.pwrite(self._files[handle], body[40 : 40 + size], offset), 0)
        if opcode == RELEASE:
            os.close(self._files.pop(struct.unpack_from("<Q", body)[0]))
            return b""
        if opcode == STATFS:
            found = os.statvfs(path)
            numbers = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
            return struct.pack("<QQQQQIIII24x", *numbers, found.f_bsize, 255, found.f_frsize, 0)
        if opcode == OPENDIR:
            return struct.pack("<QII", 0, 0, 0)
        if opcode == READDIR:
            return _names(path, *struct.unpack_from("<QQI", body)[1:])
        if opcode == FLUSH and not self.asked_on_close:
            raise OSError(errno.ENOSYS, "not served")  # the kernel asks no more
        if opcode in (FLUSH, FSYNC, RELEASEDIR):
            return b""
        raise OSError(errno.ENOSYS, "not served")

    def _entry(self, path: Path) -> bytes:
        attributes = _attributes(path)
        number = self._numbers.get(path)
        if number is None:  # never one that was another file's: the kernel knows a file by it
            number = self._numbers[path] = next(self._new_numbers)
        self._paths[number] = path
        return ENTRY.pack(number, 0, 0, 0, 0, 0) + attributes

    def _opened(self, path: Path, flags: int) -> bytes:
        descriptor = os.open(path, flags & ~os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        self._files[descriptor] = descriptor
        # What is mapped needs the page cache.
        how = KEPT if path.name.endswith(("-shm", ".bin")) else DIRECT
        return struct.pack("<QII", descriptor, how, 0)

    def _set(self, path: Path, body: bytes) -> bytes:
        valid, size = struct.unpack_from("<I", body)[0], struct.unpack_from("<Q", body, 16)[0]
        if valid & 8:
            os.truncate(path, size)
        return struct.pack("<QII", 0, 0, 0) + _attributes(path)

    def _rename(self, folder: Path, names: bytes, to: int) -> None:
        old, new = (os.fsdecode(name) for name in names.split(b"\0")[:2])
        target = self._paths[to] / new
        (folder / old).rename(target)
        number = self._numbers.pop(folder / old, None)
        if number is not None:
            self._numbers[target], self._paths[number] = number, target


def _name(body: bytes) -> str:
    return os.fsdecode(body.partition(b"\0")[0])


def _attributes(path: Path) -> bytes:
    found = path.lstat()
    seconds = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    parts = tuple(ns % 1_000_000_000 for ns in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns))
    owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0)
    return ATTR.pack(found.st_ino, found.st_size, found.st_blocks, *seconds, *parts, *owner)


def _names(folder: Path, offset: int, size: int) -> bytes:
    found = b""
    for place, path in enumerate(sorted(folder.iterdir())[offset:], offset + 1):
        mode, raw = path.lstat().st_mode, os.fsencode(path.name)
        entry = struct.pack("<QQII", 1, place, len(raw), stat.S_IFMT(mode) >> 12) + raw
        entry += b"\0" * (-len(entry) % 8)
        if len(found) + len(entry) > size:
            break
        found += entry
    return found


@contextmanager
def mounted(serve: Callable[[Path, Path], Served], at: Path, real: Path) -> Iterator[Served]:
    """Mount one over two folders that are made for it; skips the test where it may not."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounts a file system of its own, for which it needs root and /dev/fuse")
    at.mkdir()
    real.mkdir()
    try:
        served = serve(real, at)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield served
    finally:
        served.end()


def hanging(at: Path, real: Path, *, asked_on_close: bool = True) -> AbstractContextManager[HangingFs]:
    """Mount one that can hang.

    As of another machine, it is asked whenever a file is closed, also by a child that got a copy of the descriptor;
    without `asked_on_close` it is as NFS is with files that are read.
    """
    return mounted(partial(HangingFs, asked_on_close=asked_on_close), at, real)
