"""Looks at paths in a child process: a file system that never answers holds no thread of this one.

A thread that waits in the kernel beyond SIGKILL keeps its whole process from ending. A child that waits there is left
behind, and what it was asked for counts as silent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from supervisor.children.child import Child
from supervisor.children.running_limit import RunningLimit
from supervisor.children.start import PIPE, start

ANSWER_LIMIT_S = 1.0
ANSWER_AWAITED_S = 86400.0
"""How long one look may last where the answer is waited for; another follows."""
BEGIN_LIMIT_S = 10.0
PIECE_BYTES = 65536
LINKS_MAX = 40
"""As many symbolic links as the kernel follows in one path."""

_SCRIPT = f"""
import errno, posix, sys

def answer(*words):
    posix.write(1, b" ".join(word if type(word) is bytes else b"%d" % word for word in words) + b"\\n")

def parts_of(path):
    return [part for part in path.split(b"/") if part not in (b"", b".")]

def look(path, silent):
    at, rest, links = b"/", parts_of(path), 0
    while rest:
        part = rest.pop(0)
        if part == b"..":
            at = at.rpartition(b"/")[0] or b"/"
            continue
        place = at.rstrip(b"/") + b"/" + part
        if place in silent:
            raise TimeoutError(errno.ETIMEDOUT, "", place)
        answer(b"at", place.hex().encode())
        if posix.lstat(place).st_mode & {stat.S_IFMT(0o777777)} != {stat.S_IFLNK}:
            at = place
            continue
        links += 1
        if links > {LINKS_MAX}:
            raise OSError(errno.ELOOP, "")
        target = posix.readlink(place)
        rest[:0] = parts_of(target)
        at = b"/" if target.startswith(b"/") else at
    found, disk = posix.stat(at), posix.statvfs(at)
    answer(b"found", found.st_mode, found.st_uid, found.st_gid, disk.f_bavail * disk.f_frsize,
           disk.f_blocks * disk.f_frsize, disk.f_favail, disk.f_files, disk.f_flag & posix.ST_RDONLY)

answer(b"ready")
for line in sys.stdin.buffer:
    try:
        path, *silent = map(bytes.fromhex, line.decode().split())
        look(path, silent)
    except OSError as error:
        answer(b"error", error.errno, (error.filename or b"").hex().encode())
"""
"""What it imports is built into the interpreter: with `os`, or `json`, its start takes twice the processor time.

A question is a line of paths in hexadecimal digits: the one to look at, then those that were silent. An answer is a
line too: the part of the path that it asks for next, and last what lies there or the error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies at a path, links followed."""

    mode: int
    """As `st_mode` of stat(2)."""
    uid: int
    gid: int
    free_bytes: int
    """What its file system has left for an ordinary user."""
    total_bytes: int = 0
    """How much that holds in all."""
    free_inodes: int = 0
    total_inodes: int = 0
    """How many files it can hold; 0 where that is no fixed number."""
    read_only: bool = False
    """Whether that is mounted read-only."""


class SilentPathError(OSError):
    """A file system did not answer."""

    def __init__(self, place: str, limit_s: float) -> None:
        """`place` is the part of the path that it was asked for."""
        self.explanation = f"{place} does not answer within {limit_s:.0f} s"
        super().__init__(errno.ETIMEDOUT, self.explanation, place)


def find_silent(looks: PathLooks, path: Path) -> str | None:
    """Return which part of a path does not answer, so that it must not be touched; None where it may be."""
    try:
        looks.look(path)
    except SilentPathError as silent:
        return silent.explanation
    except OSError:
        return None
    return None


def wait_until_answered(path: Path) -> None:
    """Wait until every part of a path answers, however long that takes."""
    with PathLooks(ANSWER_AWAITED_S) as looks:  # one process, whose wait may be beyond any signal
        while find_silent(looks, path) is not None:
            pass


def _is_encodable(path: str) -> bool:
    """Return whether a file can have this name."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _encode(path: str) -> str:
    return os.fsencode(path).hex()


def _decode(digits: str) -> str:
    return os.fsdecode(bytes.fromhex(digits))


def _read_found(*numbers: int) -> Found:
    mode, uid, gid, free_bytes, total_bytes, free_inodes, total_inodes, read_only = numbers
    return Found(
        mode=mode,
        uid=uid,
        gid=gid,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
        free_inodes=free_inodes,
        total_inodes=total_inodes,
        read_only=bool(read_only),
    )


class PathLooks:
    """Asks one child after the other; a part of a path that was silent once is not asked for again."""

    def __init__(self, limit_s: float = ANSWER_LIMIT_S) -> None:
        """`limit_s` is how long a file system may take for one part of a path."""
        self._limit_s = limit_s
        self._child: Child | None = None
        self._received = b""
        self._silent: list[str] = []

    def __enter__(self) -> PathLooks:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the child."""
        self._leave()

    def look(self, path: str | os.PathLike[str]) -> Found:
        """Return what lies at a path; raise SilentPathError where that is not answered, OSError where there is none."""
        asked = os.path.join(os.getcwd(), os.fspath(path))  # noqa: PTH109, PTH118 - ".." is resolved after links
        if not _is_encodable(asked):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), asked)
        child, at = self._child or self._begin(), asked
        self._ask(child, asked)
        while (answer := self._next_answer(child, self._limit_s)) is not None:
            kind, *words = answer.split()
            if kind == "at":
                at = _decode(words[0])
            elif kind == "found":
                return _read_found(*map(int, words))
            else:
                self._raise(int(words[0]), "".join(map(_decode, words[1:])), path)
        self._leave()
        self._silent.append(at)
        raise SilentPathError(at, self._limit_s)

    def _raise(self, number: int, place: str, path: str | os.PathLike[str]) -> NoReturn:
        if number == errno.ETIMEDOUT and place in self._silent:
            raise SilentPathError(place, self._limit_s)
        raise OSError(number, os.strerror(number), os.fspath(path))

    def _ask(self, child: Child, path: str) -> None:
        assert child.stdin is not None
        try:
            child.stdin.write(" ".join(map(_encode, [path, *self._silent])).encode() + b"\n")
        except OSError:
            self._leave()
            raise

    def _begin(self) -> Child:
        """Start a child and return it once it takes questions. Raises OSError where there is none."""
        # -S -I: it imports nothing from a directory of a user, which may lie on such a file system.
        self._child = child = start([sys.executable, "-S", "-I", "-c", _SCRIPT], stdin=PIPE, stdout=PIPE)
        self._received = b""
        if self._next_answer(child, BEGIN_LIMIT_S) is None:
            self._leave()
            raise OSError(errno.EAGAIN, "the process that looks at paths did not begin")
        return child

    def _next_answer(self, child: Child, limit_s: float) -> str | None:
        """Return the child's next line; None where it says nothing for `limit_s`. Raises OSError where it has ended."""
        assert child.stdout is not None
        limit = RunningLimit(limit_s)
        with selectors.DefaultSelector() as ready:
            ready.register(child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not limit.wait_for(lambda wait_s: bool(ready.select(wait_s))):
                    return None
                piece = os.read(child.stdout.fileno(), PIECE_BYTES)
                if not piece:
                    self._leave()
                    raise OSError(errno.EAGAIN, "the process that looks at paths has ended")
                self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def _leave(self) -> None:
        """Kill the child and do not wait for its end, which may never come."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(OSError):
                child.close_pipes()
            child.abandon()
