"""Silences: after which steps earlier attempts were stopped for one, and how long this attempt's pauses were."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.moments import Moment

SAME_PLACE_STEPS = 2
LONGER_BY = 5
"""How many times as long a silence may be at a step after which an attempt was stopped for one."""
PAUSE_MARGIN = 2


@dataclass(slots=True)
class Silences:
    """A silence that comes back at the same step may be the program's own: a save, an evaluation, an upload.

    What hangs at the same step each time is found later for it, but where the whole job rests; a program that was
    stopped in its own pause again and again would be given up.
    """

    steps: tuple[int, ...] = ()
    """After which steps of the training attempts before this one were stopped for silence, one for each."""
    longest_pause_s: float = 0.0
    """Between two steps of this attempt, where others were stopped for silence."""

    def add_pause(self, last_at: Moment | None, at: Moment, stage_since: Moment | None) -> None:
        """Take in a step and the one before it, unless another stage came in between."""
        if self.steps and last_at is not None and (stage_since is None or stage_since.seconds_since(last_at) <= 0):
            self.longest_pause_s = max(self.longest_pause_s, at.seconds_since(last_at))

    def count_at(self, step: int | None) -> int:
        """Return how many attempts were stopped for silence after a step of the training; None is not known."""
        return 0 if step is None else sum(abs(step - other) <= SAME_PLACE_STEPS for other in self.steps)

    def lengthen(self, limit_s: float, step: int | None, at_most_s: float) -> float:
        """Return a limit on the silence after a step, longer by what is known of such silences."""
        longer_s = max(limit_s * float(LONGER_BY ** self.count_at(step)), self.longest_pause_s * PAUSE_MARGIN)
        return max(limit_s, min(longer_s, at_most_s))
