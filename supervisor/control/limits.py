"""A listening socket with a limit of connections for each user, and over TCP for each address.

Who comes beyond it takes the place of the connection there that has waited longest for its client, or is refused and
closed at once. The kernel knows the peer of a connection before it is accepted, so one that is refused costs no
protocol, task or buffer. When no file descriptor is left, a spare one is closed so that the connection can be accepted
and closed; in the queue it would keep the event loop busy.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any

from supervisor.control.peers import find_owner

log = logging.getLogger(__name__)

CONNECTIONS_PER_USER = 24
"""A browser opens six; what asks a status each second has one."""
RESERVED, FEW = 16, 4
"""Connections beyond the number over all users, and which users may have them: those who have fewer than FEW. Three
users can fill every other place with requests that are being answered, of which none is ended for another."""
STAYS_S = 0.25
"""A connection is not ended for another before: its request may be on its way."""
REFUSALS_PER_TURN = 256
ENDED_PER_TURN = 32
"""Connections ended for others in one turn of the event loop, which closes them in the next ones. A loop accepts all of
its queue in a turn: without this, a crowd that comes again at once keeps a slow machine from all else for minutes."""
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
        self,
        listening: socket.socket,
        connections: int,
        connections_per_user: int = CONNECTIONS_PER_USER,
        waiting: Callable[[], Mapping[int, float | None]] | None = None,
    ) -> None:
        """Listen where `listening` does, which stays open; `connections` over all users, besides RESERVED.

        `waiting` returns by descriptor since when connections wait for their clients (`time.perf_counter`), None for
        those that are being answered. Without it no connection is ended for another.
        """
        super().__init__(fileno=os.dup(listening.fileno()))
        self._connections, self._connections_per_user = connections, connections_per_user
        self._waiting = waiting
        self._taken: list[tuple[Hashable, float, socket.socket]] = []
        """Whose they are, and when they were accepted."""
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._refused, self._logged_s = 0, -REFUSALS_LOGGED_EVERY_S
        self._ended = 0
        """Connections that were ended for others in this turn."""

    def accept(self) -> tuple[socket.socket, object]:
        """Return the next connection within the limits; raise BlockingIOError where there is none in this turn."""
        for _ in range(REFUSALS_PER_TURN if self._ended < ENDED_PER_TURN else 0):
            try:
                connection, address = super().accept()
            except OSError as error:
                if error.errno not in _NOTHING_LEFT:
                    raise
                # The kernel looks for a descriptor first, and says so of an empty queue as well.
                if not self._turn_away():
                    break
                continue
            if self._has_room(connection, address):
                return connection, address
        raise BlockingIOError(errno.EAGAIN, "what is in the queue waits for the next turn")

    def close(self) -> None:
        """Close the socket and the spare descriptor."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()

    def _has_room(self, connection: socket.socket, address: Any) -> bool:
        """Count a connection, or answer that it is beyond the limit."""
        try:
            owner = find_owner(connection, address)
        except OSError:
            connection.close()
            return False
        self._taken = [taken for taken in self._taken if taken[2].fileno() >= 0]
        held = Counter(taken[0] for taken in self._taken)
        crowded: Hashable = None
        if held[owner] >= self._connections_per_user:
            crowded = owner
        elif len(self._taken) >= self._connections + (RESERVED if held[owner] < FEW else 0):
            crowded = held.most_common(1)[0][0]
        if crowded is None or self._end_longest_waiting(crowded):
            self._taken.append((owner, time.perf_counter(), connection))
            return True
        with suppress(OSError):
            connection.send(_BUSY, socket.MSG_DONTWAIT)
        connection.close()
        self._note_refusal(owner, held[owner])
        return False

    def _end_longest_waiting(self, owner: Hashable) -> bool:
        """End the connection of an owner that has waited longest for its client; return whether there was one."""
        if self._waiting is None:
            return False
        since = self._waiting()
        found = [
            (waits_since_s, taken)
            for taken in self._taken
            # One that is not known there has not begun: it still agrees on TLS.
            if taken[0] == owner and (waits_since_s := since.get(taken[2].fileno(), taken[1])) is not None
        ]
        if not found:
            return False
        _, longest = min(found, key=lambda item: item[0])
        if time.perf_counter() - longest[1] < STAYS_S:
            return False  # and none that has waited less long goes in its place
        self._taken.remove(longest)
        with suppress(OSError):
            longest[2].shutdown(socket.SHUT_RDWR)  # whoever serves it reads its end, and closes it
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._ended += 1
        return True

    def _begin_turn(self) -> None:
        self._ended = 0

    def _note_refusal(self, owner: Hashable, theirs: int) -> None:
        """Log the first refusal at once, and those after it together."""
        self._refused += 1
        now_s = time.perf_counter()
        if now_s - self._logged_s >= REFUSALS_LOGGED_EVERY_S:
            fields = {"peer": owner, "open": theirs, "refused": self._refused}
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
