"""A deadline for a conversation over a socket, however slowly the other side drips, or however fast it floods."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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
