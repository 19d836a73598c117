"""A listening socket with a limit of connections for each user; those beyond it are refused and closed at once.

The kernel knows the peer of a connection before it is accepted, so one beyond the limit costs no protocol, task or
buffer. When no file descriptor is left, a spare one is closed so that the connection can be accepted and closed; in the
queue it would keep the event loop busy.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from contextlib import suppress

from supervisor.control.peers import peer_of

log = logging.getLogger(__name__)

CONNECTIONS_PER_USER = 24
"""A browser opens six; what asks a status each second has one."""
REFUSALS_PER_TURN = 256
REFUSALS_LOGGED_EVERY_S = 10.0
"""Whoever is refused may ask again at once, thousands of times a second."""
_NOTHING_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{"schema": 1, "error": {"code": "busy", "message": "too many connections are open to the daemon", '
    b'"remedy": "close some of them"}}\n'
)


class LimitedListener(socket.socket):
    """Accepts as a socket does, and as if none had come where the next one is beyond a limit."""

    def __init__(
        self, listening: socket.socket, connections: int, connections_per_user: int = CONNECTIONS_PER_USER
    ) -> None:
        """Listen where `listening` does, which stays open; `connections` is the number over all users."""
        super().__init__(fileno=os.dup(listening.fileno()))
        self._connections, self._connections_per_user = connections, connections_per_user
        self._taken: list[tuple[int | None, socket.socket]] = []
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._refused, self._logged_s = 0, -REFUSALS_LOGGED_EVERY_S

    def accept(self) -> tuple[socket.socket, object]:
        """Return the next connection within the limits; raise BlockingIOError where there is none."""
        for _ in range(REFUSALS_PER_TURN):
            try:
                connection, address = super().accept()
            except OSError as error:
                if error.errno not in _NOTHING_LEFT:
                    raise
                # The kernel looks for a descriptor first, and says so of an empty queue as well.
                if not self._turn_away():
                    break
                continue
            if self._has_room(connection):
                return connection, address
        raise BlockingIOError(errno.EAGAIN, "connections beyond the limit were refused")

    def close(self) -> None:
        """Close the socket and the spare descriptor."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()

    def _has_room(self, connection: socket.socket) -> bool:
        """Count a connection, or answer that it is beyond the limit."""
        try:
            uid = _find_user(connection)
        except OSError:
            connection.close()
            return False
        self._taken = [(owner, item) for owner, item in self._taken if item.fileno() >= 0]
        theirs = sum(owner == uid for owner, _ in self._taken)
        if theirs < self._connections_per_user and len(self._taken) < self._connections:
            self._taken.append((uid, connection))
            return True
        with suppress(OSError):
            connection.send(_BUSY, socket.MSG_DONTWAIT)
        connection.close()
        self._note_refusal(uid, theirs)
        return False

    def _note_refusal(self, uid: int | None, theirs: int) -> None:
        """Log the first refusal at once, and those after it together."""
        self._refused += 1
        now_s = time.perf_counter()
        if now_s - self._logged_s >= REFUSALS_LOGGED_EVERY_S:
            fields = {"uid": uid, "open": theirs, "refused": self._refused}
            log.warning("control.connections_refused", extra={"fields": fields})
            self._refused, self._logged_s = 0, now_s

    def _turn_away(self) -> bool:
        """Take and close one connection with the descriptor that is kept for it; return whether there was one."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            super().accept()[0].close()
        except OSError:
            return False
        finally:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        log.error("control.no_descriptors", extra={"fields": {"socket": os.fsdecode(self.getsockname())}})
        return True


def _find_user(connection: socket.socket) -> int | None:
    """Return whose connection it is, None over TCP, where all are counted together; raise OSError where it ended."""
    return peer_of(connection).uid if connection.family == socket.AF_UNIX else None
