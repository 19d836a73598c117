"""Limits of a conversation over a socket: on its time, however the other side drips or floods, and on its lines."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO


class Cut:
    """Ends a connection in any state: TLS takes its socket away from who holds it, so it keeps one of its own.

    A handshake whose records never end is read within OpenSSL, which looks at no limit of time in between.
    """

    def __init__(self) -> None:
        """Begin without a connection."""
        self._watched: socket.socket | None = None
        self._lock = threading.Lock()
        self.ended = threading.Event()
        """Set once the time was over."""

    def watch(self, connected: socket.socket) -> None:
        """Take the connection that is to be ended; one that is already late is ended at once."""
        own = socket.socket(fileno=os.dup(connected.fileno()))
        with self._lock:
            before, self._watched = self._watched, own
        if before is not None:
            before.close()
        if self.ended.is_set():
            self.end()

    def end(self) -> None:
        """Shut the connection down."""
        self.ended.set()
        with self._lock:
            if self._watched is not None:
                with suppress(OSError):
                    self._watched.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Close the own socket."""
        with self._lock:
            if self._watched is not None:
                self._watched.close()
                self._watched = None


@contextmanager
def cut_after(limit_s: float, connected: socket.socket | None = None) -> Iterator[Cut]:
    """Shut the connection down after `limit_s`: a socket's own limit begins again with each read.

    One that is made within is passed to `watch`.
    """
    cut = Cut()
    timer = threading.Timer(limit_s, cut.end)
    timer.daemon = True
    try:
        if connected is not None:
            connected.settimeout(limit_s)
            cut.watch(connected)
        timer.start()
        yield cut
    finally:
        timer.cancel()
        cut.leave()


class BoundedLines:
    """What the other side sends: the standard library reads its lines for as long as they come, and keeps them all."""

    def __init__(self, file: BinaryIO, limit_bytes: int, explain: Callable[[], Exception]) -> None:
        """`explain` returns what is raised where the lines have more than `limit_bytes` in all."""
        self._file = file
        self._explain = explain
        self.left_bytes = limit_bytes

    def readline(self, limit_bytes: int) -> bytes:
        """Return the next line, or as much of it."""
        line = self._file.readline(limit_bytes)
        self.left_bytes -= len(line)
        if self.left_bytes < 0:
            raise self._explain()
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
