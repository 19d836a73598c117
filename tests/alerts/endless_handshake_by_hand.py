"""A server whose TLS handshake has no end: records that OpenSSL reads and passes over, as fast as they are taken."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")
HELLO_REQUEST = b"\x16\x03\x03\x00\x04\x00\x00\x00\x00"
ENDED_S = 60.0


@contextmanager
def endless_handshake(*replies: bytes, greeting: bytes = b"") -> Iterator[int]:
    """Run one, and yield its port; it answers each line with the next of `replies`, and begins TLS after the last."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_serve, args=(listening, accepted, greeting, replies), daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
    for connected in accepted:
        with suppress(OSError):  # a client that has ended may have left the kernel with a full queue for a minute
            connected.shutdown(socket.SHUT_RDWR)
    thread.join(ENDED_S)
    assert not thread.is_alive(), "the server sends on"


def _serve(
    listening: socket.socket, accepted: list[socket.socket], greeting: bytes, replies: tuple[bytes, ...]
) -> None:
    with suppress(OSError):
        connected, _ = listening.accept()
        accepted.append(connected)
        with connected:
            connected.sendall(greeting)
            for reply in replies:
                connected.recv(4096)
                connected.sendall(reply)
            while True:
                connected.sendall(HELLO_REQUEST * 1000)


def within_limit(work: Callable[[], T]) -> T:
    """Return what work returns; fail where it takes without end."""
    done: list[T] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(ENDED_S)
    assert done, f"no answer for {ENDED_S:.0f} s"
    return done[0]
