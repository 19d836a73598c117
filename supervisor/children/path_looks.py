"""Looks at paths in a child process: a file system that never answers holds no thread of this one.

A thread that waits in the kernel beyond SIGKILL keeps its whole process from ending. A child that waits there is left
behind, and what it was asked for counts as silent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
import errno, json, os, stat, sys

def say(**answer):
    print(json.dumps(answer), flush=True)

def parts_of(path):
    return [part for part in path.split("/") if part not in ("", ".")]

def look(path, silent):
    at, rest, links = "/", parts_of(path), 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            at = os.path.dirname(at)
            continue
        place = os.path.join(at, part)
        if place in silent:
            raise TimeoutError(errno.ETIMEDOUT, "", place)
        say(at=place)
        if not stat.S_ISLNK(os.lstat(place).st_mode):
            at = place
            continue
        links += 1
        if links > {LINKS_MAX}:
            raise OSError(errno.ELOOP, "")
        target = os.readlink(place)
        rest[:0] = parts_of(target)
        at = "/" if target.startswith("/") else at
    found, disk = os.stat(at), os.statvfs(at)
    say(mode=found.st_mode, uid=found.st_uid, gid=found.st_gid, free_bytes=disk.f_bavail * disk.f_frsize,
        total_bytes=disk.f_blocks * disk.f_frsize, free_inodes=disk.f_favail, total_inodes=disk.f_files,
        read_only=bool(disk.f_flag & os.ST_RDONLY))

say(ready=True)
for line in sys.stdin:
    try:
        look(*json.loads(line))
    except OSError as error:
        say(errno=error.errno, place=error.filename)
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
        if "\0" in asked:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), asked)
        child, at = self._child or self._begin(), asked
        self._ask(child, asked)
        while (answer := self._next_answer(child, self._limit_s)) is not None:
            if "errno" in answer:
                if answer["errno"] == errno.ETIMEDOUT and answer["place"] in self._silent:
                    raise SilentPathError(answer["place"], self._limit_s)
                raise OSError(answer["errno"], os.strerror(answer["errno"]), os.fspath(path))
            if "mode" in answer:
                return Found(**answer)
            at = answer["at"]
        self._leave()
        self._silent.append(at)
        raise SilentPathError(at, self._limit_s)

    def _ask(self, child: Child, path: str) -> None:
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps([path, self._silent]).encode() + b"\n")
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

    def _next_answer(self, child: Child, limit_s: float) -> dict[str, Any] | None:
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
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _leave(self) -> None:
        """Kill the child and do not wait for its end, which may never come."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(OSError):
                child.close_pipes()
            child.abandon()
