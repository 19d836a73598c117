"""The time by which old records and files are deleted: the wall clock's, but a jump ahead counts only after a day.

A clock that is years ahead for a minute (a battery that is empty, a mistyped date, a virtual machine that was resumed)
would delete nearly all that is kept by age.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from supervisor.core.moments import Moment

TRUSTED_AFTER_S = 86_400.0
"""A clock that has been ahead for so long is right: the machine was switched off, or was behind before."""
JUMP_S = 86_400.0
"""A clock that is ahead by less deletes at most a day's worth early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryTime:
    """The time that ages are reckoned from."""

    unix_s: float
    at: Moment
    """When it was last advanced."""
    ahead_since: Moment | None = None
    """Since when the wall clock is ahead of it by more than `JUMP_S`; None where it is not."""

    def advanced(self, now: Moment) -> ExpiryTime:
        """Return it at `now`: with a clock that was set back at once, with one that jumped ahead after a day."""
        expected_unix_s = self.unix_s + max(0.0, now.seconds_since(self.at))
        if now.unix_s <= expected_unix_s + JUMP_S:
            return ExpiryTime(unix_s=now.unix_s, at=now)
        since = self.ahead_since
        if since is None or self._has_jumped_again(now):
            since = now
        if now.seconds_since(since) >= TRUSTED_AFTER_S:
            return ExpiryTime(unix_s=now.unix_s, at=now)
        return ExpiryTime(unix_s=expected_unix_s, at=now, ahead_since=since)

    def encode(self) -> str:
        """Return it as text for the next daemon, which may run in another boot."""
        since = "" if self.ahead_since is None else f" {self.ahead_since.unix_s!r}"
        return f"{self.unix_s!r}{since}"

    def _has_jumped_again(self, now: Moment) -> bool:
        return abs((now.unix_s - self.at.unix_s) - now.seconds_since(self.at)) > JUMP_S


def decode_expiry_time(text: str | None, now: Moment, last_written_unix_s: float | None) -> ExpiryTime:
    """Return what an earlier daemon encoded, before it is advanced to `now`.

    Without such a text, or with one that cannot be read, its time is when a daemon last wrote to the record, and `now`
    where none did.
    """
    known = _read_numbers(text or "")
    if not known:
        return ExpiryTime(unix_s=now.unix_s if last_written_unix_s is None else last_written_unix_s, at=now)
    read = ExpiryTime(unix_s=known[0], at=now)
    if len(known) == 1:
        return read
    ahead_s = max(0.0, now.unix_s - known[1])
    return replace(read, ahead_since=Moment(now.monotonic_s - ahead_s, known[1]))


def _read_numbers(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split()]
    except ValueError:
        return []
    return found if all(math.isfinite(number) for number in found) else []
