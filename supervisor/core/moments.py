"""A moment on both clocks, passed in as an argument."""

from __future__ import annotations

from dataclasses import dataclass

CLOCK_STEP_S = 1.0
"""A wall clock that was set by less was adjusted, as time services do."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant: monotonic seconds for durations, Unix seconds for people.

    Only the monotonic part is compared: a wall clock that jumps moves no deadline. A monotonic value means
    nothing after a reboot, so whoever loads a stored moment must know that its boot is the present one.
    """

    monotonic_s: float
    unix_s: float

    def seconds_since(self, earlier: Moment) -> float:
        """Return the seconds from `earlier` to this moment, negative when `earlier` is later."""
        return self.monotonic_s - earlier.monotonic_s

    def clock_set_since(self, earlier: Moment) -> float:
        """Return by how many seconds the wall clock was set since a moment of this boot; 0 where it was not."""
        by_s = (self.unix_s - self.monotonic_s) - (earlier.unix_s - earlier.monotonic_s)
        return by_s if abs(by_s) > CLOCK_STEP_S else 0.0

    def plus(self, seconds: float) -> Moment:
        """Return the moment `seconds` later."""
        return Moment(self.monotonic_s + seconds, self.unix_s + seconds)

    def at_monotonic(self, monotonic_s: float) -> Moment:
        """Return the moment of another monotonic reading of this boot, its wall time reckoned from this one."""
        return Moment(monotonic_s, self.unix_s + (monotonic_s - self.monotonic_s))
