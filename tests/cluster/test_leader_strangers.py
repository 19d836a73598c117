"""Connections by the hundred from who has no secret: a node joins as before, and the log does not grow with them."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path

import pytest
from cluster_by_hand import until
from leader_by_hand import SECRET, begin_leader

from supervisor.cluster.connection import Connection
from supervisor.cluster.leader import STRANGERS_LOGGED, UNPROVEN_MAX
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.link import Greeting, Role
from supervisor.daemon.clock import SystemClock


def joins(address: tuple[str, int]) -> bool:
    """Connect as a node; return whether the leader answers it."""
    opened = socket.create_connection(address)
    link = Connection(opened, Role.NODE, Greeting(name="n0", version="1", job="run"), SECRET, "boss")
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
        leader = begin_leader(tmp_path, listening, SystemClock())
        thread = threading.Thread(target=leader.run, daemon=True)
        thread.start()
        held = [socket.create_connection(address) for _ in range(4 * UNPROVEN_MAX)]
        for _ in range(4 * UNPROVEN_MAX):
            with socket.create_connection(address) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert joins(address)
        leader.ask_to_stop("the story is over")
        thread.join(60)
        assert not thread.is_alive()
        for stranger in held:
            stranger.close()
    logged = [record for record in caplog.records if record.message == "leader.link_ended"]
    assert 1 <= len(logged) <= 3 * STRANGERS_LOGGED, "some windows of it, on a machine under load"
