"""One TCP connection of a link, without blocking: what was read becomes messages, what is sent waits for its turn."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from supervisor.core.fleet.link import NONCE_BYTES, Greeting, Link, LinkError, Role
from supervisor.core.fleet.messages import Message, MessageError, decode, encode

READ_BYTES = 1 << 14
"""Some eighty beats: what one peer sends without a pause must not hold up the turn of all others."""
UNSENT_BYTES_MAX = 4 << 20
"""A peer that takes nothing in has hung: its link is ended before what waits for it fills the memory."""


class Connection:
    """One end of a link and its socket. Errors are LinkError or OSError; then the connection is over."""

    def __init__(self, opened: socket.socket, role: Role, greeting: Greeting, secret: bytes, address: str) -> None:
        """`greeting` is this end's own; `address` the peer's, for errors."""
        opened.setblocking(False)  # noqa: FBT003 - the standard library's
        with contextlib.suppress(OSError):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = opened
        self.link = Link(role, greeting, secret, os.urandom(NONCE_BYTES), address)

    def read(self) -> Iterator[Message]:
        """Yield the messages that have come. Raises LinkError where the peer has closed."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise self.link.closed()
        for message in self.link.feed(data):
            try:
                yield decode(message)
            except MessageError as error:
                raise LinkError(f"{self.link.peer_text}: {error}") from error

    def send(self, message: Message) -> None:
        """Send a message, as much of it as the socket takes at once."""
        self.link.send(encode(message))
        self.flush()

    def flush(self) -> None:
        """Send what waits."""
        unsent = self.link.outgoing
        while unsent:
            try:
                sent = self.socket.send(unsent)
            except BlockingIOError:
                break
            del unsent[:sent]
        if len(unsent) > UNSENT_BYTES_MAX:
            raise LinkError(f"{self.link.peer_text}: takes nothing in, {len(unsent)} bytes wait")

    @property
    def waits_to_send(self) -> bool:
        """Whether the socket is to be watched for room."""
        return bool(self.link.outgoing)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
