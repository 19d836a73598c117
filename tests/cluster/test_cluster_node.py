"""A node whose leader falls silent: the link is made anew, and no report is lost with the old one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cluster_by_hand import until

from supervisor.cluster.connection import Connection
from supervisor.cluster.node import SILENT_LIMIT_S, Node, NodeSettings, Running
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.link import Greeting, Role
from supervisor.core.fleet.resume import Offer
from supervisor.core.moments import Moment

SECRET = b"sixteen bytes or more"
EPOCH = Epoch("run", 0, 1)


@dataclass
class Daemon:
    """The node's daemon, which starts nothing."""

    ordered: list[Epoch] = field(default_factory=list)

    def launch(self, order: ms.Launch) -> None:
        self.ordered.append(order.epoch)

    def stop(self, running: Running, reason: str) -> None:
        raise AssertionError(reason)

    def cancel(self, epoch: Epoch) -> bool:
        return epoch in self.ordered

    def is_alive(self, running: Running) -> bool:
        return False

    def take_evidence(self, running: Running, incident: str, limit_s: float) -> Path:
        raise AssertionError(incident)

    def find_resume(self, asked: ms.FindResume) -> tuple[Offer, ...]:
        raise AssertionError(asked)

    def leave(self, reason: str, *, finished: bool) -> None:
        raise AssertionError(reason, finished)


class Boss:
    """A leader by hand: what it accepts it proves itself to; it answers only what a story has it answer."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.links: list[Connection] = []

    def accept(self) -> Connection:
        """Take in the next connection, with its first messages."""
        self.listening.settimeout(60.0)
        opened, _ = self.listening.accept()
        greeting = Greeting(name="boss", version="1", job="run")
        self.links.append(Connection(opened, Role.LEADER, greeting, SECRET, "node"))
        return self.links[-1]

    @staticmethod
    def take_until(link: Connection, is_last: Callable[[ms.Message], bool]) -> list[ms.Message]:
        """Return the messages of a link up to one."""
        found: list[ms.Message] = []

        def arrived() -> bool:
            found.extend(link.read())
            link.flush()
            return any(map(is_last, found))

        until(arrived, "a message of the node")
        return found


@pytest.fixture
def boss() -> Iterator[Boss]:
    item = Boss()
    yield item
    for link in item.links:
        link.close()
    item.listening.close()


def test_a_leader_that_answers_no_more_is_connected_to_again_and_what_was_reported_meanwhile_is_repeated(
    boss: Boss,
) -> None:
    elapsed_s = [0.0]
    daemon = Daemon()
    address: tuple[str, int] = boss.listening.getsockname()
    settings = NodeSettings(node="n0", job="run", leader=address, secret=SECRET, host="127.0.0.1")
    node = Node(settings, daemon, lambda: Moment(monotonic_s=1000.0 + elapsed_s[0], unix_s=0.0))
    node.start()
    try:
        first = boss.accept()
        boss.take_until(first, lambda message: isinstance(message, ms.Joined))
        first.send(ms.Launch(epoch=EPOCH, node_rank=0, nodes=1, host="127.0.0.1", port=1))
        until(lambda: daemon.ordered == [EPOCH], "the launch")
        node.ended(EPOCH, finished=True, reason="")  # into a network that carries nothing any more
        boss.take_until(first, lambda message: message == ms.Finished(epoch=EPOCH))
        elapsed_s[0] += SILENT_LIMIT_S + 1.0
        until(lambda: node.problem is not None and "has not answered for" in node.problem, "the silence to be noticed")
        elapsed_s[0] += 1.0
        joined, *rest = boss.take_until(boss.accept(), lambda message: message == ms.Finished(epoch=EPOCH))
        # Not as one that lost its ranks, which would be an incident.
        assert isinstance(joined, ms.Joined)
        assert (joined.running, joined.ordered) == (EPOCH, EPOCH)
        assert rest[0] == ms.Finished(epoch=EPOCH)
    finally:
        node.end()
