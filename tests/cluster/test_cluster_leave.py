"""The end of a training reaches every node, whatever happens to its link in that moment, or the node ends by itself."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from boss_by_hand import SECRET, Boss
from cluster_by_hand import until
from leader_by_hand import begin_leader
from test_cluster_node import CLOCK, EPOCH, Daemon, begin

from supervisor.cluster import leader as leader_module
from supervisor.cluster.connection import Connection
from supervisor.cluster.leader import Leader
from supervisor.cluster.leader_link import SILENT_LIMIT_S
from supervisor.cluster.node import ALONE_LIMIT_S
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.link import Greeting, LinkError, Role
from supervisor.core.moments import Moment
from supervisor.daemon.roles import member as member_module
from supervisor.daemon.roles.member import Member

FINISHED = "the training finished on all nodes"


@dataclass
class Leaving(Daemon):
    """One that is to leave."""

    left: list[tuple[str, bool]] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)

    def leave(self, reason: str, *, finished: bool) -> None:
        self.left.append((reason, finished))

    def give_up(self, reason: str) -> None:
        self.given_up.append(reason)


class Held:
    """A clock at which the node's thread can be held, as a scheduler holds it under load."""

    def __init__(self) -> None:
        self.open, self.reached, self.ahead_s = threading.Event(), threading.Event(), 0.0
        self.open.set()

    def now(self) -> Moment:
        if not self.open.is_set():
            self.reached.set()
            self.open.wait(60.0)
        now = CLOCK.now()
        return Moment(monotonic_s=now.monotonic_s + self.ahead_s, unix_s=now.unix_s)

    def hold(self) -> None:
        """Return once the thread is held."""
        self.reached.clear()
        self.open.clear()
        assert self.reached.wait(60.0)


def has_unread(link: Connection) -> bool:
    try:
        return bool(link.socket.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@pytest.mark.parametrize("how", ["closed with a beat unread", "closed in order", "open, and the node was away"])
def test_the_last_message_of_a_leader_counts_though_its_link_has_failed_when_it_is_read(boss: Boss, how: str) -> None:
    """A socket that is closed with something unread resets the link; one closed in order does so at the next beat."""
    clock, daemon = Held(), Leaving()
    node = begin(boss, daemon, clock.now)
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        until(lambda: has_unread(link), "a beat that is not read")
        clock.hold()
        if how != "closed with a beat unread":
            list(link.read())
        link.send(ms.Leave(reason=FINISHED, finished=True))
        if how.startswith("open"):
            clock.ahead_s = SILENT_LIMIT_S + 1.0
        else:
            link.close()
        clock.open.set()
        until(lambda: daemon.left, "the node to leave", 10.0)
        assert daemon.left == [(FINISHED, True)]
    finally:
        clock.open.set()
        node.end()


def test_a_node_that_is_asked_twice_to_leave_does_so_once_and_does_not_come_back(boss: Boss) -> None:
    """Its daemon would take a second request for an order to end before the training has been saved."""
    daemon, clock = Leaving(), Held()
    node = begin(boss, daemon, clock.now)
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        for _ in range(2):
            link.send(ms.Leave(reason=FINISHED, finished=True))
        link.socket.shutdown(socket.SHUT_WR)
        until(lambda: is_closed(link), "the node to close its end")
        assert daemon.left == [(FINISHED, True)]
        clock.ahead_s += ALONE_LIMIT_S + 10.0
        boss.listening.settimeout(1.0)
        with pytest.raises(TimeoutError):
            boss.listening.accept()
        assert daemon.given_up == []
    finally:
        node.end()


def is_closed(link: Connection) -> bool:
    try:
        list(link.read())
    except (LinkError, OSError):
        return True
    return False


def test_a_node_without_ranks_to_which_no_leader_comes_gives_up(boss: Boss) -> None:
    """The leader may have ended for good while the link was down, and never comes back."""
    clock, daemon = Held(), Leaving()
    node = begin(boss, daemon, clock.now)
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        link.send(ms.Launch(epoch=EPOCH, node_rank=0, nodes=1, host="127.0.0.1", port=1))
        until(lambda: daemon.ordered == [EPOCH], "the launch")
        node.ended(EPOCH, finished=True, reason="")
        boss.take_until(link, lambda message: message == ms.Finished(epoch=EPOCH))
        boss.listening.close()
        link.close()
        until(lambda: "Connection refused" in (node.problem or ""), "word that no leader is there")
        clock.ahead_s += ALONE_LIMIT_S - 60.0
        threading.Event().wait(0.5)
        assert daemon.given_up == []
        clock.ahead_s += 61.0
        until(lambda: daemon.given_up, "the node to give up")
        (why,) = daemon.given_up
        assert re.fullmatch(r"no leader for 180\d s, and no rank runs here: leader \S+: Connection refused", why)
    finally:
        node.end()


def test_a_daemon_that_is_to_leave_ends_though_there_is_no_room_for_what_it_clears_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> bool:
        raise MemoryError("no thread")

    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(member_module, "ends_within", refuse)
    monkeypatch.setattr(member_module, "START_LIMIT_S", 0.0)  # this process takes none
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    with pytest.raises(MemoryError):
        Member.__new__(Member)._end_daemon(clears=True)
    assert sent == [(os.getpid(), signal.SIGTERM)]


# --- the leader's side ----------------------------------------------------------------------------------------------


class ByHand:
    """A node's end of a link to a real leader."""

    def __init__(self, address: tuple[str, int], name: str, **joined: object) -> None:
        greeting = Greeting(name=name, version="1", job="run")
        self.link = Connection(socket.create_connection(address), Role.NODE, greeting, SECRET, "boss")
        self.link.flush()
        until(lambda: list(self.link.read()) == [] and self.link.link.peer is not None, "the leader's proof")
        facts = {"running": None, "ordered": None, "host": "h", "unix_s": 0.0, **joined}
        self.link.send(ms.Joined(**facts))  # type: ignore[arg-type] # a story's facts
        self.found: list[ms.Message] = []

    def take(self, kind: type[ms.Message]) -> ms.Message:
        def arrived() -> bool:
            self.found.extend(self.link.read())
            return any(isinstance(message, kind) for message in self.found)

        until(arrived, kind.__name__, 20.0)
        return next(message for message in self.found if isinstance(message, kind))


@pytest.fixture
def led(tmp_path: Path) -> Iterator[tuple[Leader, threading.Thread, tuple[str, int]]]:
    listening = socket.create_server(("127.0.0.1", 0))
    leader = begin_leader(tmp_path, listening, CLOCK)
    thread = threading.Thread(target=leader.run, daemon=True)
    thread.start()
    yield leader, thread, listening.getsockname()
    leader.ask_to_stop("the story is over")
    thread.join(60)
    assert not thread.is_alive()


Led = tuple[Leader, threading.Thread, tuple[str, int]]


def test_a_leader_ends_once_its_nodes_have_taken_that_in(led: Led) -> None:
    """Beats that it has not read when it ends do not reset the link under its last message."""
    leader, thread, address = led
    node = ByHand(address, "n0")
    until(lambda: "n0" in leader._nodes, "the node to join")
    leader.ask_to_stop("its user")
    node.take(ms.Leave)
    for sent in range(5):
        node.link.send(ms.NodeBeat(sent_s=float(sent)))
    until(lambda: is_closed(node.link), "the leader's end to be closed for sending")
    assert node.link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "no reset"
    assert thread.is_alive()
    node.link.close()
    thread.join(leader_module.END_LIMIT_S / 2)
    assert not thread.is_alive(), "without waiting for its limit"


def test_a_node_whose_link_was_down_when_the_training_ended_leaves_when_it_comes(
    led: Led, caplog: pytest.LogCaptureFixture
) -> None:
    leader, thread, address = led
    ByHand(address, "n0").link.close()
    until(lambda: "n0" in leader._leading.members and "n0" not in leader._nodes, "the link to break")
    leader.ask_to_stop("its user")
    until(lambda: leader._status is not None, "the end of the training")
    node = ByHand(address, "n0")
    assert node.take(ms.Leave) == ms.Leave(reason="stopped")
    node.link.close()
    thread.join(leader_module.END_LIMIT_S / 2)
    assert not thread.is_alive()
    assert "leader.leave_not_taken" not in caplog.text


def test_a_node_that_never_comes_back_holds_the_leader_up_for_a_limit_and_is_named(
    led: Led, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(leader_module, "END_LIMIT_S", 0.5)
    leader, thread, address = led
    ByHand(address, "n0").link.close()
    until(lambda: "n0" in leader._leading.members and "n0" not in leader._nodes, "the link to break")
    leader.ask_to_stop("its user")
    thread.join(20)
    assert not thread.is_alive()
    (left,) = [record for record in caplog.records if record.message == "leader.leave_not_taken"]
    assert vars(left)["fields"] == {"nodes": ["n0"]}


def test_a_node_that_comes_while_the_training_is_being_stopped_is_to_leave_at_once(led: Led) -> None:
    leader, _, address = led
    first = ByHand(address, "n0", running=EPOCH, ordered=EPOCH)
    until(lambda: "n0" in leader._nodes, "the node to join")
    leader.ask_to_stop("its user")
    first.take(ms.Leave)  # and saves, which takes a while
    late = ByHand(address, "n1")
    assert late.take(ms.Leave) == ms.Leave(reason="its user")
    first.link.close()
    late.link.close()
