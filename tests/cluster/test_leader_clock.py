"""A leader whose wall clock is set while it leads."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from cluster_by_hand import until
from leader_by_hand import begin_leader, begin_leading

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
