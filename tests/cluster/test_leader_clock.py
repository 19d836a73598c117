"""A leader whose wall clock is set while it leads."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
from cluster_by_hand import until
from leader_by_hand import SECRET, begin_leader, begin_leading

from supervisor.cluster.connection import Connection
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.link import Greeting, Role
from supervisor.core.fleet.training import LeaderLimits
from supervisor.core.moments import Moment
from supervisor.daemon.clock import SystemClock


class SettableClock:
    """The clock of the machine, its wall clock ahead by what a story sets."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> Moment:
        """Return the time on both clocks."""
        now = SystemClock().now()
        return Moment(now.monotonic_s, now.unix_s + self.ahead_s)


def test_what_is_saved_after_the_leaders_clock_was_set_back_is_still_saved_since_the_training_began(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine may begin with a clock that is hours ahead; set forward it may have slept, which says nothing."""
    clock = SettableClock()
    leading = begin_leading(clock)
    began_s = leading.began_unix_s = clock.now().unix_s
    with socket.create_server(("127.0.0.1", 0)) as listening:
        leader = begin_leader(tmp_path, listening, clock, leading)
        thread = threading.Thread(target=leader.run, daemon=True)
        thread.start()
        clock.ahead_s = 7200.0
        until((tmp_path / "state.json").exists, "a turn of the leader")
        clock.ahead_s = 3600.0
        until(lambda: "leader.clock_set_back" in caplog.text, "the leader to find its clock set back")
        until(lambda: leading.began_unix_s != began_s, "the begin by the clock as it is now")
        assert began_s - 3601.0 < leading.began_unix_s < began_s - 3599.0
        leader.ask_to_stop("the story is over")
        thread.join(60)
        assert not thread.is_alive()


def ask_of(node: Connection, unix_s: float) -> ms.FindResume:
    """Join as the only node of a training; return what it is asked for its first launch."""
    found: list[ms.Message] = []

    def is_asked() -> bool:
        node.flush()
        found.extend(node.read())
        return any(isinstance(message, ms.FindResume) for message in found)

    until(lambda: is_asked() or node.link.peer is not None, "the leader's proof")
    node.send(ms.Joined(running=None, ordered=None, host="h", unix_s=unix_s))
    until(is_asked, "the leader's question")
    return next(message for message in found if isinstance(message, ms.FindResume))


def test_what_is_saved_under_a_leader_whose_clock_stays_ahead_is_saved_since_the_training_began(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The machines of leader and node are two hours ahead of the one that keeps their files."""
    clock = SettableClock()
    clock.ahead_s = 7200.0
    leading = Leading(Epoch("run", 0, 0), LeaderLimits(nodes=1, spares_s=0.0), clock.now().monotonic_s)
    leading.began_unix_s = clock.now().unix_s
    with socket.create_server(("127.0.0.1", 0)) as listening:
        leader = begin_leader(tmp_path, listening, clock, leading)
        thread = threading.Thread(target=leader.run, daemon=True)
        thread.start()
        until(lambda: "leader.clock_ahead_of_storage" in caplog.text, "the leader to find the clock of its record")
        opened = socket.create_connection(listening.getsockname())
        node = Connection(opened, Role.NODE, Greeting(name="n0", version="1", job="run"), SECRET, "boss")
        asked = ask_of(node, clock.now().unix_s)
        assert asked.since_unix_s <= (tmp_path / "state.json").stat().st_mtime < leading.began_unix_s
        until(
            lambda: json.loads((tmp_path / "state.json").read_text())["began_unix_s"] < leading.began_unix_s - 7000,
            "the begin in the record, by which a leader after this one goes",
        )
        node.close()
        leader.ask_to_stop("the story is over")
        thread.join(60)
        assert not thread.is_alive()
