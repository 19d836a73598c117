"""When a failed delivery is tried again, and when a training that was given up is reported again.

Pure functions, so that a restart of the daemon changes nothing in them. Source of the waits before a try: Standard
Webhooks, "Deliverability and reliability".
"""

from __future__ import annotations

import hashlib

from supervisor.core.events import AlertTried

WAITS_S = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
"""Wait before the n-th try; after the last one nothing is tried."""
JITTER = 0.2
"""Longest addition to a wait, as a part of it: what failed together shall not come back together."""
RETRY_AFTER_LIMIT_S = 86400.0
FIRST_REMINDERS_S = (3_600.0, 14_400.0)
"""From giving up to the first reminders."""
DAILY_S = 86_400.0
"""From one reminder to the next after these."""


def next_try_s(alert_id: str, tries: int, tried: AlertTried) -> float | None:
    """Return the seconds until an alert is tried again after `tries` attempts, None where it is not.

    What the receiver asked for (`Retry-After`) counts where it is longer, up to a day.
    """
    if tried.delivered or tried.final or tries >= len(WAITS_S):
        return None
    wait_s = WAITS_S[tries] * (1.0 + JITTER * _hash_to_fraction(f"{alert_id} {tries}"))
    return max(wait_s, min(tried.retry_after_s or 0.0, RETRY_AFTER_LIMIT_S))


def _hash_to_fraction(text: str) -> float:
    """Return a number from 0 to 1 that is always the same for a text and even over many."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def count_reminders(given_up_s: float) -> int:
    """Return how many reminders are due `given_up_s` after a training was given up: after 1 h, 4 h, then daily."""
    if given_up_s >= DAILY_S:
        return len(FIRST_REMINDERS_S) + int(given_up_s // DAILY_S)
    return sum(given_up_s >= after_s for after_s in FIRST_REMINDERS_S)
