"""A leader by hand, for stories of a node."""

from __future__ import annotations

import socket
from collections.abc import Callable

from cluster_by_hand import until

from supervisor.cluster.connection import Connection
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.link import Greeting, Role

SECRET = b"sixteen bytes or more"
LEASE_S = 600.0
"""What it gives: longer than a story takes on a machine under load."""


class Boss:
    """What it accepts it proves itself to; it answers only what a story has it answer."""

    leader_now: Callable[[], float] | None = None
    """The clock by which it answers each beat at once; None: it answers none, and a node soon takes it for gone."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.links: list[Connection] = []

    def accept(self) -> Connection:
        """Take in the next connection, with its first messages; its beats are answered once a story has it do so."""
        self.leader_now = None
        self.listening.settimeout(60.0)
        opened, _ = self.listening.accept()
        greeting = Greeting(name="boss", version="1", job="run")
        self.links.append(Connection(opened, Role.LEADER, greeting, SECRET, "node"))
        return self.links[-1]

    def take_until(self, link: Connection, is_last: Callable[[ms.Message], bool]) -> list[ms.Message]:
        """Return the messages of a link up to one."""
        found: list[ms.Message] = []

        def arrived() -> bool:
            for message in link.read():
                found.append(message)
                if isinstance(message, ms.NodeBeat) and self.leader_now is not None:
                    link.send(ms.LeaderBeat(echo_s=message.sent_s, now_s=self.leader_now(), lease_s=LEASE_S))
            link.flush()
            return any(map(is_last, found))

        until(arrived, "a message of the node")
        return found
