"""Has another process do what may wait for a file system that never answers.

A thread of this process that waits in the kernel beyond SIGKILL keeps it from ending: neither a restart nor an upgrade
would come through while a training's disk hangs. `apart` waits for an answer instead, for as long as that takes; what
is asked for meanwhile is answered. In a process that did not begin this (the command line, a test, that other process)
it does the work itself, and imports nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from supervisor.children.file_asks import FileServer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_servers: list[FileServer] = []
_for_a_time: list[FileServer] = []
"""Of a process that did not begin this, for what it asks within a time: all else it goes on to do itself."""


class Look(Protocol):
    """Either `apart` or `here`."""

    def __call__(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Return what a function returns, or raise what it raises."""
        ...


def here(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Return what a function returns in this thread: for files of a file system that always answers."""
    return work(*given, **named)


def read_with(reader: R, read: Callable[[R], T]) -> tuple[R, T]:
    """Return a reader as it is after reading, which another process may have done, and what it has read."""
    return reader, read(reader)


def keep_files_apart() -> None:
    """Have `apart` ask another process from now on."""
    _servers[:] = [_make_server()]


def apart(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Return what a function returns, or raise what it raises; it and all that it is given can be pickled."""
    if not _servers:
        return work(*given, **named)
    return _servers[0].do(work, *given, **named)


def apart_within(limit_s: float | None, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """As `apart`, by another process in any case; raises TimeoutError where that has no answer for `limit_s`.

    Without a limit it is `apart` itself.
    """
    if limit_s is None:
        return apart(work, *given, **named)
    if not _servers and not _for_a_time:
        _for_a_time.append(_make_server())
    return (_servers or _for_a_time)[0].do_within(limit_s, work, *given, **named)


def _make_server() -> FileServer:
    from supervisor.children.file_asks import FileServer  # noqa: PLC0415 - most processes need none

    return FileServer()
