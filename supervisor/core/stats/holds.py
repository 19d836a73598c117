"""How long a condition has held over a series of readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Reversible
from typing import Protocol, TypeVar

from supervisor.core.moments import Moment

FRESH_S = 60.0
"""A reading older than this is not current, and two further apart are not one run: the sensor was silent."""


class Reading(Protocol):
    """Anything that was read at a moment."""

    @property
    def at(self) -> Moment:
        """When."""
        ...


R = TypeVar("R", bound=Reading)


def run_of(readings: Iterable[R], holds: Callable[[R], bool | None], now: Moment) -> tuple[R, ...]:
    """Return the newest unbroken run of readings for which `holds` is true, oldest first.

    A reading of which nothing is known (None) neither continues nor breaks a run; a silence of FRESH_S does break it.
    """
    run: list[R] = []
    for reading in _newest_first(readings):
        later = run[-1].at if run else now
        if later.seconds_since(reading.at) > FRESH_S:
            break
        verdict = holds(reading)
        if verdict is None:
            continue
        if not verdict:
            break
        run.append(reading)
    return tuple(reversed(run))


def newest_of(readings: Iterable[R], holds: Callable[[R], bool | None], now: Moment) -> R | None:
    """Return the newest reading for which `holds` is true, None where it is older than FRESH_S or there is none."""
    for reading in _newest_first(readings):
        if now.seconds_since(reading.at) > FRESH_S:
            return None
        if holds(reading):
            return reading
    return None


def _newest_first(readings: Iterable[R]) -> Iterable[R]:
    """Copy nothing that can be read backwards: a rule is asked several times a second about full windows."""
    return reversed(readings if isinstance(readings, Reversible) else tuple(readings))


def lasted_s(run: tuple[R, ...]) -> float:
    """Return the seconds from the first to the last reading of a run: what readings cover, not what time has passed."""
    return run[-1].at.seconds_since(run[0].at) if run else 0.0
