"""A deadline for a conversation over a socket, however slowly the other side drips."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def cut_after(current: Callable[[], socket.socket | None], limit_s: float) -> Iterator[threading.Event]:
    """Shut the connection down after `limit_s`: a socket's own limit begins again with each read.

    `current` returns the socket of the connection, which TLS may replace. The event is set once it was shut down.
    """
    ended = threading.Event()
    connected = current()

    def end() -> None:
        ended.set()
        newest = current() or connected  # http.client forgets its socket while the response is still read from it
        if newest is not None:
            with suppress(OSError):
                # The plain shutdown: that of a TLS socket takes its state away under the thread that reads.
                socket.socket.shutdown(newest, socket.SHUT_RDWR)

    if connected is not None:
        connected.settimeout(limit_s)
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield ended
    finally:
        timer.cancel()
