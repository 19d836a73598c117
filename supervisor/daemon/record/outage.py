"""Records for how long no daemon ran, when one starts: `history` lists it where a training lived meanwhile."""

from __future__ import annotations

import logging

from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.store.store import Store

log = logging.getLogger(__name__)

ENDED = "daemon ended"
"""The note of a daemon that ended in order; of a killed one, what it wrote last tells until when it ran."""

AHEAD_S = 86_400.0
"""What was written further in the future is from a time when the clock was ahead, and hides no outage since."""


def record_outage(store: Store, now: Moment) -> None:
    """Record the time since a daemon last wrote; to be called before this one writes anything."""
    last = store.last_written_unix_s(now.unix_s + AHEAD_S)
    if last is None or now.unix_s <= last:  # the first start, or the clock was set back
        return
    away = ev.DaemonAway(at=now, away_s=now.unix_s - last)
    log.info("daemon.was_away", extra={"fields": {"away_s": round(away.away_s, 3)}})
    with store.turn(now):
        store.record_event(away)


def record_end(store: Store, now: Moment) -> None:
    """Record that this daemon ends now."""
    with store.turn(now):
        store.set_note(ENDED, repr(now.unix_s))
