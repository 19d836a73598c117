"""A clock that stands still until it is moved."""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.core.moments import Moment
from supervisor.daemon.clock import SystemClock

START = Moment(1000.0, 1_700_000_000.0)
RAN_S = 0.3


class HandClock:
    """Both clocks, moved by the test."""

    def __init__(self) -> None:
        self.moment = START

    def now(self) -> Moment:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment = self.moment.plus(seconds)

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock, as a person or NTP does."""
        self.moment = Moment(self.moment.monotonic_s, self.moment.unix_s + seconds)


class PausedClock:
    """The clock of a process that did not run for ten minutes, a moment after it began to look at it."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._began = self._clock.now()

    def now(self) -> Moment:
        now = self._clock.now()
        return now.plus(600.0) if now.seconds_since(self._began) > RAN_S else now


def until(question: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    """Wait until `question` is answered yes."""
    end = time.perf_counter() + limit_s
    while not question():
        assert time.perf_counter() < end, f"waited {limit_s} s for {what}"
        time.sleep(0.005)
