"""A TCP port of the loopback that is forwarded to a unix socket, as `ssh -L` and `socat` do it, and counts requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class ForwardedPort:
    """Forwards each connection; `heads` are the first bytes that came on each of them."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.heads: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.take(client)

    def take(self, client: socket.socket, first: bytes = b"") -> None:
        """Forward a connection of which `first` has been read already."""
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(str(self._target))
        threading.Thread(target=self._upload, args=(client, upstream, first), daemon=True).start()
        threading.Thread(target=_copy, args=(upstream, client), daemon=True).start()

    def _upload(self, client: socket.socket, upstream: socket.socket, first: bytes) -> None:
        with suppress(OSError):
            if not first:
                first = client.recv(65536)
            self.heads.append(first)
            upstream.sendall(first)
        _copy(client, upstream)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def forwarded_port(target: Path) -> Iterator[ForwardedPort]:
    """Forward a free port to the unix socket `target`."""
    forwarded = ForwardedPort(target)
    try:
        yield forwarded
    finally:
        forwarded.close()
