"""`--since` of a command: a duration before now, or a local date or time, as Unix seconds."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, TypeAlias

import click

Given: TypeAlias = "tuple[float | None, float | None]"
"""Seconds before now, or Unix seconds."""
UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
DURATION = re.compile(r"(\d{1,6})\s*(s|min|h|d|w)")
FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
EXAMPLES = "write 90min, 8h, 2d or 2026-01-31, '2026-01-31 22:15'"


class Since(click.ParamType[Given]):
    """Converts the option's text into a duration or a Unix time."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return (seconds before now, None) or (None, Unix seconds)."""
        if not isinstance(value, str):
            return value
        if found := DURATION.fullmatch(value.strip()):
            return int(found[1]) * UNITS_S[found[2]], None
        for pattern in FORMATS:
            try:
                return None, datetime.strptime(value.strip(), pattern).astimezone().timestamp()
            except (ValueError, OverflowError, OSError):
                continue
        return self.fail(f"{value!r} is neither a duration nor a time; {EXAMPLES}", param, ctx)


def since_unix_s(given: Given | None, now: float) -> float | None:
    """Return the Unix time that `--since` names; None where it was not given."""
    if given is None:
        return None
    before_s, at_unix_s = given
    return at_unix_s if before_s is None else now - before_s


since_option = click.option("--since", type=Since(), metavar="WHEN", help=f"Only incidents since then; {EXAMPLES}.")
