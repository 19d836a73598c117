"""When the daemon did not run: a training is not silent in time that was not observed.

A machine that is suspended or starved, a virtual machine that is paused and a SIGSTOP stop the daemon, and mostly the
training with it. Limits on silence, and deadlines, count the time in which the daemon ran.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from supervisor.core.events import DaemonAway
from supervisor.core.moments import Moment

ABSENCES_KEPT = 1024


@dataclass(slots=True)
class Absences:
    """The newest absences of the daemon, oldest first."""

    _spans: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=ABSENCES_KEPT))

    def add(self, away: DaemonAway) -> None:
        """Take in an absence; they come in the order of time."""
        until_s = away.at.monotonic_s
        since_s = max(until_s - away.away_s, self._spans[-1][1] if self._spans else -float("inf"))
        if since_s < until_s:
            self._spans.append((since_s, until_s))

    def seconds(self, since: Moment, until: Moment) -> float:
        """Return the seconds between two moments in which the daemon ran; negative where `until` is the earlier."""
        if until.monotonic_s <= since.monotonic_s:
            return until.seconds_since(since)
        away_s = 0.0
        for begun_s, ended_s in reversed(self._spans):
            if ended_s <= since.monotonic_s:
                break
            away_s += max(0.0, min(ended_s, until.monotonic_s) - max(begun_s, since.monotonic_s))
        return until.seconds_since(since) - away_s


def moved_on(moment: Moment, away: DaemonAway) -> Moment:
    """Return the moment from which a time limit runs, moved on by as much of an absence as lies after it.

    Its wall time stays: that is when it happened.
    """
    after_s = min(away.away_s, away.at.seconds_since(moment))
    return Moment(moment.monotonic_s + max(0.0, after_s), moment.unix_s)
