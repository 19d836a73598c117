"""Keeps the time that retention is reckoned from over restarts of the daemon; logs where the clock is ahead of it."""

from __future__ import annotations

import logging

from supervisor.core.moments import Moment
from supervisor.core.stats.expiry import decode_expiry_time
from supervisor.store.store import Store

log = logging.getLogger(__name__)

EXPIRY = "expiry time"
"""The note of it."""


class RetentionClock:
    """The time that ages are reckoned from. `advance` is called in the deciding thread, `unix_s` is read in any."""

    def __init__(self, store: Store, now: Moment) -> None:
        """To be made before this daemon writes anything."""
        self._store = store
        self._known = decode_expiry_time(store.note(EXPIRY), now, store.last_written_unix_s())
        # In the first commit: a daemon that is killed after that leaves what was written with a clock that is ahead.
        store.set_note(EXPIRY, self._known.encode())

    @property
    def unix_s(self) -> float:
        """As of the last call of `advance`, Unix seconds."""
        return self._known.unix_s

    def advance(self, now: Moment) -> float:
        """Return it at `now`, Unix seconds; it is written with the next commit."""
        before, self._known = self._known, self._known.advanced(now)
        if self._known.ahead_since is not None and before.ahead_since != self._known.ahead_since:
            ahead_s = round(now.unix_s - self._known.unix_s)
            log.warning("retention.held", extra={"fields": {"clock_ahead_s": ahead_s}})
        self._store.set_note(EXPIRY, self._known.encode())
        return self._known.unix_s
