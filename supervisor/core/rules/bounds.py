"""A limit on one value of a series of readings, asked by a rule and shown by `status` alike; it flags nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from supervisor.core.flags import Severity
from supervisor.core.gauge import Gauge, beyond
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.stats.holds import R, has_lasted, lasted_s, newest_of, run_of
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

    def run(self, readings: Sequence[R], now: Moment) -> tuple[R, ...]:
        """Return the newest readings beyond the limit in a row, oldest first."""
        if not readings or self._beyond(readings[-1]) is False:  # as good as always, and asked several times a second
            return ()
        return run_of(readings, self._beyond, now)

    def held(self, run: tuple[R, ...]) -> bool:
        """Whether such a run has lasted long enough."""
        return has_lasted(run, self.hold_s)

    def watched(self, readings: Sequence[R], now: Moment, named: Gauge) -> Gauge:
        """Return where the newest value stands; `named` says of which rule, of what and in which unit."""
        run = self.run(readings, now)
        newest = run[-1] if run else newest_of(readings, lambda item: self.value(item) is not None, now)
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

    def _beyond(self, reading: R) -> bool | None:
        value = self.value(reading)
        return None if value is None else beyond(value, self.limit, below=self.below, strict=self.strict)


def lasting(history: History, run: tuple[R, ...], hold_s: float, named: Gauge, least: int = 2) -> Gauge:
    """Return for how long a condition has held, which `History.has_lasted` judges."""
    lacks = None if len(run) >= least else f"{least} readings of it"
    return replace(named, unit="s", now=history.lasted_s(run), limit=hold_s, lacks=lacks)


def running_out(  # noqa: PLR0913 - what `named` is of, its rate and its limits
    named: Gauge, slope: Slope | None, room: float, *, within_s: float, least_rise: float, severity: Severity
) -> Gauge:
    """Return how long `room` lasts at a rate, which a rise of `least_rise` must bear out; both in the rate's unit."""
    left_s = None if slope is None else slope.left_s(room)
    if slope is None or left_s is None:
        return replace(named, not_watched="its rate is not known yet" if slope is None else "it does not rise")
    lacks = slope.falls_short_of(least_rise)
    return replace(named, unit="s", now=left_s, limit=within_s, below=True, lacks=lacks, severity=severity)
