"""Formats numbers, durations, times and sizes for people; an unknown value is a dash."""

from __future__ import annotations

from datetime import datetime, timezone

UNKNOWN = "-"
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))


def span(seconds: float | None) -> str:
    """Return a duration in its two largest units: `1 d 2 h`, `1 min 45 s`, `0.4 s`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s".replace(".0 s", " s")
    total_s = round(seconds)
    for size, unit in _SPANS:
        if total_s >= size:
            remainder_s = total_s % size
            small, small_unit = {"d": (3600, "h"), "h": (60, "min"), "min": (1, "s")}[unit]
            minor = remainder_s // small
            return f"{total_s // size} {unit}" + (f" {minor} {small_unit}" if minor else "")
    return f"{total_s} s"


def ago(then: float | None, now: float) -> str:
    """Return how long ago a Unix time was in its largest unit: `12 min ago`; a future time is `in 3 h`."""
    if then is None:
        return UNKNOWN
    seconds = now - then
    if abs(seconds) < 1:
        return "now"
    text = _in_largest_unit(abs(seconds))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def until(then: float | None, now: float) -> str:
    """Return how long it is until a Unix time, in two units: `in 2 d 5 h`."""
    if then is None:
        return UNKNOWN
    return f"in {span(then - now)}" if then > now else "due"


def clock_time(unix_s: float | None) -> str:
    """Return a Unix time in the local time zone, to the second; a time outside the calendar is a dash."""
    if unix_s is None:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(unix_s, tz=timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def size(count: float | None) -> str:
    """Return bytes in decimal units: `5.2 GB`."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: float | None, pattern: str = "{}") -> str:
    """Return a number formatted with `pattern`."""
    return UNKNOWN if value is None else pattern.format(value)


def part_of(done: int | None, total: int | None) -> str:
    """Return `3/50`, or `3` if the total is unknown."""
    if done is None:
        return UNKNOWN
    return f"{done}" if total is None else f"{done}/{total}"


def epoch(index: int | None) -> int | None:
    """Return an epoch counted from 1, as it is shown; internally it is counted from 0."""
    return None if index is None else index + 1


def _in_largest_unit(seconds: float) -> str:
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"
