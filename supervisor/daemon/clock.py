"""The clock through which the parts of the daemon read the time, and the gaps in which the daemon did not run."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

from supervisor.children.running_limit import RunningLimit
from supervisor.core.events import DaemonAway
from supervisor.core.moments import Moment

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LOOK_EVERY_S = 0.25
AWAY_S = 1.0
"""From one look at the clock to the next: a busy machine is late by less."""


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> Moment:
        """Return the current moment."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC and the wall clock of this machine."""

    def now(self) -> Moment:
        """Return the current moment on both clocks."""
        return Moment(time.monotonic(), time.time())  # noqa: TID251 - this is the place the ban points to


def begin_limit(clock: Clock, limit_s: float) -> RunningLimit:
    """Return a limit that begins now and counts the time by a clock in which the daemon runs."""
    return RunningLimit(limit_s, lambda: clock.now().monotonic_s)


def read_asleep_s() -> float:
    """Return for how long this machine has slept since its start: the monotonic clock stands still meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()  # noqa: TID251 - as above


def boot_id() -> str:
    """Return the kernel's id of the current boot; monotonic times of different boots cannot be compared."""
    return BOOT_ID.read_text().strip()


class Presence:
    """Finds out when the daemon did not run, by looking at the clock in a thread that does nothing else.

    The deciding thread alone cannot know it: held up by a slow disk it comes round late as well, while the readers of
    the attempts see everything in time. Where this thread is late, so were all the others. `taken` is called in the
    deciding thread, `keep` has a thread of its own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at: Moment | None = None
        self._unreported: list[DaemonAway] = []
        self._ended = threading.Event()

    def keep(self) -> None:
        """Look four times a second until `end`."""
        while not self._ended.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """Look at the clock."""
        with self._lock:  # the clock is read within: another thread's look must not be the later one
            now, last = self._clock.now(), self._looked_at
            self._looked_at = now
            if last is not None and (away_s := now.seconds_since(last)) >= AWAY_S:
                self._unreported.append(DaemonAway(at=now, away_s=away_s))

    def taken(self) -> tuple[DaemonAway, ...]:
        """Return the absences up to now that were not returned before, oldest first."""
        self.look()
        if not self._unreported:
            return ()
        with self._lock:
            unreported, self._unreported = tuple(self._unreported), []
        return unreported

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
