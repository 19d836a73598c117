"""The link of a node to its leader: opened again whenever it fails, and no report is lost with the old one.

A report is kept until a beat that was sent after it has been answered; after another link was made it is sent again.
Whatever connects or reads here belongs to the node's thread, and none of it blocks: a name is resolved elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from supervisor import __version__
from supervisor.cluster.answers_later import AnswersLater
from supervisor.cluster.connection import Connection
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.link import Greeting, LinkError, Role

log = logging.getLogger(__name__)

CONNECT_EVERY_S = 0.3
REFUSED_WAIT_S = 2.0
"""Until a daemon that was refused tries again: whoever has its name may be gone."""
PROVE_LIMIT_S = 5.0
"""How long a leader may take to prove who it is."""
SILENT_LIMIT_S = 5.0
"""A leader that answers no beat for so long is connected to again: TCP itself notices a network that drops all that a
connection carries after a quarter of an hour."""
LAST_READS = 16
"""Of a link that has failed, each of 16 kB; a leader's last words are a few hundred bytes."""
UNCONFIRMED_MAX = 16

Address: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""Of a socket, as getaddrinfo(3) has it."""
FindAddress: TypeAlias = Callable[[str, int], Address | OSError]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Where the leader is, and who this node is."""

    node: str
    job: str
    leader: tuple[str, int]
    secret: bytes
    host: str
    """Where other nodes reach this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUses:
    """What the link needs of the node's thread."""

    clock: Callable[[], float]
    call: Callable[[Callable[[], None]], None]
    """Has work done in the thread."""
    greet: Callable[[], Sequence[ms.Message]]
    """Returns what a leader that has proven who it is is sent first."""
    obey: Callable[[ms.Message], None]
    """Takes a message of the leader. Raises nothing."""


class LeaderLink:
    """One at a time; its socket is watched by the selector that it is given."""

    def __init__(
        self, settings: NodeSettings, ready: selectors.BaseSelector, uses: LinkUses, find_address: FindAddress
    ) -> None:
        self._settings, self._ready, self._uses, self._find_address = settings, ready, uses, find_address
        self.connection: Connection | None = None
        """The present one; who asked something on it is answered on it alone."""
        self.is_joined = False
        self._connect_at_s = self._began_connecting_s = self._answered_s = 0.0
        self._is_closed = False
        self._unsent: list[ms.Message] = []
        """Reports for which there was no leader."""
        self._unconfirmed: list[tuple[float, ms.Message]] = []
        """Reports, and when each was sent: no beat that was sent after it has been answered yet."""
        self._address_asked = AnswersLater[Address | OSError]("cluster-address", uses.call)
        self.problem: str | None = None
        """Why there is no leader at present."""

    @property
    def connect_at_s(self) -> float | None:
        """When the next connection is to be tried; None while there is one."""
        return self._connect_at_s if self.connection is None else None

    @property
    def peer_text(self) -> str | None:
        """Which leader it is, for a person; None while there is none."""
        return None if self.connection is None else self.connection.link.peer_text

    def keep(self, now_s: float, *, is_wanted: bool) -> None:
        """Connect to the leader where that is due, and end a link on which it is silent."""
        if self.connection is None and now_s >= self._connect_at_s and is_wanted:
            self._connect_at_s = now_s + CONNECT_EVERY_S
            self._address_asked.ask(partial(self._find_address, *self._settings.leader), self._connect)
        elif self.connection is not None and not self.is_joined and now_s - self._began_connecting_s > PROVE_LIMIT_S:
            address = self.connection.link.peer_text
            self.disconnect(f"{address}: has not proven who it is within {PROVE_LIMIT_S:.0f} s")
        elif self.is_joined and self.connection is not None and now_s - self._answered_s > SILENT_LIMIT_S:
            address = self.connection.link.peer_text
            self._lose(f"{address}: has not answered for {now_s - self._answered_s:.1f} s")

    def take_answer(self, echo_s: float) -> None:
        """Take in that a beat that was sent at `echo_s` has been answered, and with it what was sent before it."""
        self._answered_s, self.problem = self._uses.clock(), None
        self._unconfirmed = [(sent_s, message) for sent_s, message in self._unconfirmed if sent_s >= echo_s]

    def be_refused(self, reason: str) -> None:
        """End the link, and try again after a while."""
        self.disconnect(reason)
        self._connect_at_s = self._uses.clock() + REFUSED_WAIT_S

    def close(self) -> None:
        """End the link for good."""
        self._is_closed = True
        if self.connection is not None:
            self.disconnect("this node ends")
        self._address_asked.end()

    def serve(self, events: int) -> None:
        """Read and write what is ready."""
        connection = self.connection
        if connection is None:
            return
        try:
            failed = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                raise OSError(failed, f"leader {connection.link.peer_text}: {os.strerror(failed)}")
            if events & selectors.EVENT_READ:
                for message in connection.read():
                    self._uses.obey(message)
                if self.connection is connection and connection.link.peer is not None and not self.is_joined:
                    self._join(connection)
            if self.connection is connection:
                connection.flush()
                self._watch_socket(connection)
        except LinkError as error:
            self.disconnect(str(error))
        except OSError as error:
            self._lose(error.strerror or str(error))

    def send(self, message: ms.Message) -> None:
        """Send a message, or keep it for the next link where it is a report that must arrive."""
        if self.connection is not None and self.is_joined:
            try:
                self.connection.send(message)
                self._watch_socket(self.connection)
            except LinkError as error:
                self.disconnect(str(error))
            except OSError as error:
                self._lose(error.strerror or str(error))
            else:
                if isinstance(message, ms.Fault | ms.Stopped | ms.Finished):
                    self._unconfirmed = [*self._unconfirmed[1 - UNCONFIRMED_MAX :], (self._uses.clock(), message)]
                return
        if isinstance(message, ms.Fault | ms.Stopped | ms.Finished):
            self._unsent = [*self._unsent[1 - UNCONFIRMED_MAX :], message]

    def disconnect(self, why: str) -> None:
        """End the link; what was not confirmed is sent again over the next one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self._ready.unregister(connection.socket)
            connection.close()
        self.is_joined = False
        # It may never have come to them; taken in a second time, they change nothing.
        self._unsent = [*(message for _, message in self._unconfirmed), *self._unsent][-UNCONFIRMED_MAX:]
        self._unconfirmed = []
        self._connect_at_s = self._uses.clock() + CONNECT_EVERY_S
        self._note_problem(why)

    def _connect(self, found: Address | OSError) -> None:
        """Begin to connect to where the leader's name leads."""
        if self.connection is not None or self._is_closed:
            return
        address = "{}:{}".format(*self._settings.leader)
        try:
            if isinstance(found, OSError):
                raise found
            family, kind, protocol, _, target = found
            opened = socket.socket(family, kind, protocol)
            opened.setblocking(False)  # noqa: FBT003 - the standard library's
            with contextlib.suppress(BlockingIOError):
                opened.connect(target)
        except OSError as error:
            self._note_problem(f"leader {address}: {error.strerror}")
            return
        settings = self._settings
        greeting = Greeting(name=settings.node, version=__version__, job=settings.job)
        self.connection = Connection(opened, Role.NODE, greeting, settings.secret, address)
        self._began_connecting_s, self.is_joined = self._uses.clock(), False
        self._ready.register(opened, selectors.EVENT_WRITE, self.connection)

    def _watch_socket(self, connection: Connection) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.waits_to_send else 0)
        if self._ready.get_key(connection.socket).events != wanted:
            self._ready.modify(connection.socket, wanted, connection)

    def _join(self, connection: Connection) -> None:
        self.is_joined, self._answered_s = True, self._uses.clock()
        log.info("cluster.joined", extra={"fields": {"leader": connection.link.peer_text}})
        greeting = self._uses.greet()
        unsent, self._unsent = self._unsent, []
        for message in (*greeting, *(kept for kept in unsent if kept not in greeting)):
            self.send(message)

    def _lose(self, why: str) -> None:
        """End a link that has failed, and obey what had come over it: a leader that ends says so last."""
        connection = self.connection
        if connection is None:
            return
        self.connection = None
        self._ready.unregister(connection.socket)
        with contextlib.suppress(LinkError, OSError):
            for _ in range(LAST_READS):
                for message in connection.read():
                    self._uses.obey(message)
        connection.close()
        self.disconnect(why)

    def _note_problem(self, why: str) -> None:
        if why != self.problem:
            log.warning("cluster.no_leader", extra={"fields": {"why": why}})
        self.problem = why


def resolve(host: str, port: int) -> Address | OSError:
    """Return where a name leads, or why that is not known; without a network this takes many seconds."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return error
