"""Connections by the hundred from who has no secret: a node joins as before, and the log does not grow with them."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_by_hand import until
from leader_by_hand import SECRET, begin_leader

from supervisor.cluster.connection import Connection
from supervisor.cluster.leader import NO_DESCRIPTORS_WAIT_S, STRANGERS_LOGGED, UNPROVEN_MAX
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.link import Greeting, Role
from supervisor.core.moments import Moment
from supervisor.daemon.clock import Clock, SystemClock

CROWD = 3 * UNPROVEN_MAX


@contextmanager
def leading(folder: Path, listening: socket.socket, clock: Clock) -> Iterator[None]:
    """Run a leader in a thread, until its story is over."""
    leader = begin_leader(folder, listening, clock)
    thread = threading.Thread(target=leader.run, daemon=True)
    thread.start()
    yield
    leader.ask_to_stop("the story is over")
    thread.join(60)
    assert not thread.is_alive()


def connect_as_node(address: tuple[str, int], source: str = "127.0.0.1") -> Connection:
    """Connect, and send nothing yet."""
    opened = socket.create_connection(address, source_address=(source, 0))
    return Connection(opened, Role.NODE, Greeting(name="n0", version="1", job="run"), SECRET, "boss")


def joins(link: Connection) -> bool:
    """Join as a node; return whether the leader answers it."""
    answers: list[ms.Message] = []

    def is_answered() -> bool:
        link.flush()
        answers.extend(link.read())
        return bool(answers)

    link.flush()
    until(lambda: list(link.read()) == [] and link.link.peer is not None, "the leader's proof")
    link.send(ms.Joined(running=None, ordered=None, host="h", unix_s=0.0))
    link.send(ms.NodeBeat(sent_s=1.0))
    until(is_answered, "the answer to a beat")
    link.close()
    return isinstance(answers[0], ms.LeaderBeat)


def test_strangers_by_the_hundred_keep_no_node_out_and_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        address: tuple[str, int] = listening.getsockname()
        with leading(tmp_path, listening, SystemClock()):
            held = [socket.create_connection(address) for _ in range(4 * UNPROVEN_MAX)]
            for _ in range(4 * UNPROVEN_MAX):
                with socket.create_connection(address) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert joins(connect_as_node(address))
        for stranger in held:
            stranger.close()
    logged = [record for record in caplog.records if record.message == "leader.link_ended"]
    assert 1 <= len(logged) <= 3 * STRANGERS_LOGGED, "some windows of it, on a machine under load"


def test_a_node_is_read_from_before_a_crowd_behind_it_takes_its_place(tmp_path: Path) -> None:
    with ExitStack() as held, socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        address: tuple[str, int] = listening.getsockname()
        node = connect_as_node(address)
        node.flush()
        for _ in range(CROWD):
            held.enter_context(socket.create_connection(address))
        node.socket.settimeout(60)
        with leading(tmp_path, listening, SystemClock()):
            assert node.socket.recv(1), "the leader's greeting"
        node.close()


def test_a_crowd_of_one_address_takes_no_place_of_another(tmp_path: Path) -> None:
    with ExitStack() as held, socket.create_server(("0.0.0.0", 0), backlog=1024) as listening:
        address = "127.0.0.1", listening.getsockname()[1]
        node = connect_as_node(address, "127.0.0.2")
        with leading(tmp_path, listening, SystemClock()):
            crowd = [held.enter_context(socket.create_connection(address)) for _ in range(CROWD)]
            assert crowd[0].recv(1) == b"", "closed for a later one"
            assert joins(node)


class StandingClock:
    """It goes on where a story has it go on."""

    def __init__(self) -> None:
        self.at_s, self.read, self.pace_s = 1000.0, 0, 0.0

    def now(self) -> Moment:
        """Return the time on both clocks."""
        self.read += 1
        self.at_s += self.pace_s
        return Moment(self.at_s, 1e9 + self.at_s)


class Exhausted(socket.socket):
    """Listens where no file descriptor is left for what it would accept."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(fileno=os.dup(listening.fileno()))
        self.tried, self.has_room = 0, False

    def accept(self) -> tuple[socket.socket, Any]:
        """Fail until there is room."""
        self.tried += 1
        if self.has_room:
            return super().accept()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_leader_without_a_descriptor_for_a_node_waits_and_takes_it_in_once_it_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StandingClock()
    with socket.create_server(("127.0.0.1", 0)) as bound, Exhausted(bound) as listening:
        node = connect_as_node(bound.getsockname())
        with leading(tmp_path, listening, clock):
            until(lambda: listening.tried == 1, "the leader has tried to accept")
            until(lambda: clock.read > 200, "more turns of the leader")
            assert listening.tried == 1
            clock.at_s += NO_DESCRIPTORS_WAIT_S
            until(lambda: listening.tried == 2, "a further try")
            listening.has_room = True
            clock.at_s += NO_DESCRIPTORS_WAIT_S
            assert joins(node)
            clock.pace_s = 1.0
    assert caplog.text.count("leader.no_descriptors") == 1


def test_what_a_node_sends_without_a_pause_is_read_in_parts() -> None:
    """A leader reads from each of its nodes once in a turn."""
    ends = socket.socketpair()
    greeting = Greeting(name="n0", version="1", job="run")
    node, leader = (
        Connection(end, role, greeting, SECRET, "peer")
        for end, role in zip(ends, (Role.NODE, Role.LEADER), strict=True)
    )
    for _ in range(3):
        for link in (node, leader):
            link.flush()
            assert list(link.read()) == []
    for number in range(1000):
        node.send(ms.NodeBeat(sent_s=float(number)))
    read = list(leader.read())
    assert 10 < len(read) < 200
    while len(read) < 1000:
        read += leader.read()
        node.flush()
    assert [beat.sent_s for beat in read if isinstance(beat, ms.NodeBeat)] == list(range(1000)), "all, in their order"
    for end in ends:
        end.close()
