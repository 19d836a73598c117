"""Quiet hours: from one time of day to another, by the clock on the wall of a zone; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """A daily period; one that passes midnight belongs to the day on which it begins."""

    begin_min: int
    """Minutes since midnight."""
    end_min: int
    """Not quiet any more at this minute; equal to the beginning: a day long."""
    days: frozenset[int] = frozenset(range(7))
    """Days of the week, Monday is 0."""
    zone: tzinfo | None = None
    """None: that of this machine."""

    def includes(self, unix_s: float) -> bool:
        """Whether a time is quiet; a time that no calendar has is not."""
        try:
            local = datetime.fromtimestamp(unix_s, self.zone)
        except (ValueError, OverflowError, OSError):
            return False
        minute, today = local.hour * 60 + local.minute, local.weekday()
        if self.begin_min < self.end_min:
            return self.begin_min <= minute < self.end_min and today in self.days
        begun = minute >= self.begin_min and today in self.days
        return begun or (minute < self.end_min and (today - 1) % 7 in self.days)


def read_hours(text: str, days: Sequence[str], zone: tzinfo | None) -> QuietHours:
    """Read `22:30-07:00`; raise ValueError for anything else."""
    begin, end = (read_minutes(part) for part in text.split("-"))
    chosen = frozenset(DAYS.index(day) for day in days) if days else frozenset(range(7))
    return QuietHours(begin_min=begin, end_min=end, days=chosen, zone=zone)


def read_minutes(text: str) -> int:
    """Return the minutes from midnight to a time of day, `07:30`; raise ValueError for anything else."""
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)
