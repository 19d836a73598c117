"""A moment on both clocks, passed in as an argument."""

from __future__ import annotations

from dataclasses import dataclass


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

    def plus(self, seconds: float) -> Moment:
        """Return the moment `seconds` later."""
        return Moment(self.monotonic_s + seconds, self.unix_s + seconds)

    def at_monotonic(self, monotonic_s: float) -> Moment:
        """Return the moment of another monotonic reading of this boot, its wall time reckoned from this one."""
        return Moment(monotonic_s, self.unix_s + (monotonic_s - self.monotonic_s))
