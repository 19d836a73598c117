"""What the leader's clock is ahead of a node's, by beats and their answers: the error is at most half the way and back.

Both clocks are monotonic ones and began anywhere, each at its machine's start. They also run unlike each other, so that
a measurement is believed less the older it is; a new leader has another clock.
"""

from __future__ import annotations

from dataclasses import dataclass

DRIFT = 2e-4
"""Two clocks of machines differ by less than this share of the time: each is kept within 100 ppm, mostly within 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """The best measurement so far; seconds."""

    seconds: float = 0.0
    error_s: float = 1e9
    measured_s: float = 0.0
    """When, on the node's clock."""

    def error_at(self, now_s: float) -> float:
        """Return how far it can be off by now."""
        return self.error_s + DRIFT * max(0.0, now_s - self.measured_s)

    def measured(self, *, sent_s: float, theirs_s: float, now_s: float) -> ClockOffset:
        """Return it after an answer: the leader's clock showed `theirs_s` between `sent_s` and `now_s` of this one."""
        error_s = (now_s - sent_s) / 2
        if not 0.0 <= error_s <= self.error_at(now_s):
            return self
        return ClockOffset(seconds=theirs_s - (sent_s + error_s), error_s=error_s, measured_s=now_s)
