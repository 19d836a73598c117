"""The wall clock of the page."""

from __future__ import annotations

import time


def now_unix_s() -> float:
    """Return the time in Unix seconds."""
    return time.time_ns() / 1e9
