"""Runs the daemon's rules over a recording, faster than real time and without actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from supervisor.core import events as ev
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.judge import can_wait, judge
from supervisor.core.moments import Moment
from supervisor.core.rules import Rule
from supervisor.replay.recording import Recording, when

TICK_S = 1.0
"""Interval of ticks in a replay; the daemon ticks four times a second."""
LONGEST_SILENCE_S = 7 * 86400.0
"""Ticks that bridge a gap in a recording; a longer one is a clock that went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """A flag, and when it would have risen for the first time."""

    after_s: float
    """Since the launch."""
    step: int | None
    """The last step that was known then."""
    flag: RedFlag


def replay(recording: Recording, rules: Iterable[Rule], tick_s: float = TICK_S) -> Iterator[Fired]:
    """Yield every flag when it is first raised, each problem once, as a daemon reports it.

    The recording goes on after a flag that would have stopped the attempt: it shows what happened then.
    """
    asked = [rule for rule in rules if rule.enabled]
    history = History(now=recording.launched_at, launched_at=recording.launched_at, gpus_used=recording.gpus_used)
    reported: set[object] = set()
    for event in _insert_ticks(recording.events(), recording.launched_at, tick_s):
        history.add(event)
        if can_wait(event):
            continue
        flags = judge(asked, history)
        history.flagged = any(flag.severity is Severity.CRITICAL for flag in flags)
        for flag in flags:
            if flag.key not in reported:
                reported.add(flag.key)
                after_s = flag.at.seconds_since(recording.launched_at)
                yield Fired(after_s=after_s, step=history.steps[-1].step if history.steps else None, flag=flag)


def _insert_ticks(events: Iterable[ev.Event], began: Moment, tick_s: float) -> Iterator[ev.Event]:
    """Return the events with the ticks between them."""
    due = began.monotonic_s + tick_s
    for event in events:
        gap_s = when(event) - due
        while due <= when(event) and gap_s <= LONGEST_SILENCE_S:
            yield ev.Tick(at=event.at.at_monotonic(due))
            due += tick_s
        if gap_s > LONGEST_SILENCE_S:
            due = when(event) + tick_s
        yield event
        if isinstance(event, ev.DaemonAway):
            due = max(due, event.at.monotonic_s)
