"""Limits that several rules share: on one value of a series of readings, on a duration, on what runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from supervisor.core.gauge import Gauge, beyond
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.stats.holds import R, lasted_s, newest_of, run_of
from supervisor.core.stats.trend import Slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Generic[R]):
    """`value` at `limit` or beyond in every reading for `hold_s`."""

    value: Callable[[R], float | None]
    """None: the reading says nothing, and neither continues nor breaks a run."""
    limit: float
    hold_s: float
    below: bool = False
    strict: bool = False

    def may_be_reached(self, readings: Sequence[R]) -> bool:
        """Whether the newest reading is beyond the limit, or says nothing."""
        return bool(readings) and self._is_beyond(readings[-1]) is not False

    def run(self, readings: Sequence[R], now: Moment) -> tuple[R, ...]:
        """Return the newest readings beyond the limit in a row, oldest first."""
        return run_of(readings, self._is_beyond, now) if self.may_be_reached(readings) else ()

    def measure(self, readings: Sequence[R], now: Moment, named: Gauge) -> Gauge:
        """Return the gauge of the newest value; `named` gives its name, its unit and the text of its flag."""
        run = self.run(readings, now)
        newest = newest_of(readings, lambda item: self.value(item) is not None, now)
        return replace(
            named,
            now=None if newest is None else self.value(newest),
            limit=self.limit,
            below=self.below,
            strict=self.strict,
            held_s=lasted_s(run) if len(run) > 1 else None,
            hold_s=self.hold_s,
            not_watched="not in any reading" if newest is None else None,
        )

    def _is_beyond(self, reading: R) -> bool | None:
        value = self.value(reading)
        return None if value is None else beyond(value, self.limit, below=self.below, strict=self.strict)


def measure_lasting(history: History, run: tuple[R, ...], hold_s: float, named: Gauge, least: int = 2) -> Gauge:
    """Return for how long a condition has held, which `History.has_lasted` judges."""
    lacks = None if len(run) >= least else f"{least} readings of it"
    return replace(named, unit="s", now=history.lasted_s(run), limit=hold_s, lacks=lacks)


def is_running_out(slope: Slope | None, room: float, within_s: float) -> bool:
    """Whether `room` is used up within `within_s` seconds at a rate, however certain the rate; both in its unit."""
    left_s = None if slope is None else slope.left_s(room)
    return left_s is not None and left_s <= within_s


def measure_running_out(named: Gauge, slope: Slope | None, room: float, *, within_s: float, least_rise: float) -> Gauge:
    """Return how long `room` lasts at a rate, which a rise of `least_rise` must bear out; both in the rate's unit."""
    left_s = None if slope is None else slope.left_s(room)
    if slope is None or left_s is None:
        return replace(named, not_watched="its rate is not known yet" if slope is None else "it does not rise")
    return replace(named, unit="s", now=left_s, limit=within_s, below=True, lacks=slope.falls_short_of(least_rise))
