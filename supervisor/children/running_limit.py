"""A limit on a wait that counts the time in which this process ran, and none in which it was stopped.

After a SIGSTOP, or a pause of a virtual machine, the monotonic clock is far ahead, and what was waited for has mostly
stood still too: it is not late.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.5
COUNTED_S = 1.0
"""Most that counts from one look at the clock to the next: a busy machine is late by less."""


class RunningLimit:
    """One limit, for one thread; whoever waits under it asks it for each part of the wait."""

    def __init__(self, limit_s: float, read_clock: Callable[[], float] = time.perf_counter) -> None:
        self.limit_s = limit_s
        self._read_clock = read_clock
        self.left_s, self._looked_at = limit_s, read_clock()

    def next_wait_s(self) -> float:
        """Return for how long to wait now before this is asked again, 0 once the limit is over."""
        now = self._read_clock()
        self.left_s -= min(now - self._looked_at, COUNTED_S)
        self._looked_at = now
        return min(max(self.left_s, 0.0), LOOK_EVERY_S)

    def wait_for(self, wait: Callable[[float], bool]) -> bool:
        """Return whether what `wait` waits for, for the seconds that it is given, came within the limit."""
        while not wait(wait_s := self.next_wait_s()):
            if wait_s == 0:
                return False
        return True
