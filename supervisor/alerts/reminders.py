"""When a training that stands given up is reported again; a pure function, so that a restart changes nothing in it."""

from __future__ import annotations

FIRST_S = (3_600.0, 14_400.0)
"""From giving up to the first reminders."""
DAILY_S = 86_400.0
"""From one reminder to the next after these."""


def count_reminders(given_up_s: float) -> int:
    """Return how many reminders are due `given_up_s` after a training was given up: after 1 h, 4 h, then daily."""
    if given_up_s >= DAILY_S:
        return len(FIRST_S) + int(given_up_s // DAILY_S)
    return sum(given_up_s >= after_s for after_s in FIRST_S)
