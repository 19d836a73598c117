"""How fast a training steps, without the time between its epochs, in bounded memory.

An interval between two steps counts as stepping only where the training was in no other stage and the epoch did not
change: validation, checkpoints and restarts of the loaders are recorded separately, as pauses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.stats.median import median, quantile

STRETCH_S = 30.0
STRETCHES_KEPT = 480
WARM_STRETCHES = 2
"""Not part of the usual pace: caches fill, kernels are selected, clocks rise."""
PAUSES_KEPT = 64
RECENT_STRETCHES = 3
"""Several stretches are needed to measure a pace: one long wait or one kernel search is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Half a minute of stepping, or one longer step."""

    at: Moment
    """Its end."""
    steps: int
    took_s: float
    waited_s: float | None = None
    """Part of `took_s` spent waiting for data; None where it is not reported."""

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.took_s / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Seconds per step over all stretches kept: the median, and the fast and the slow tenth."""

    step_s: float
    fast_step_s: float
    slow_step_s: float
    stretches: int


@dataclass(slots=True)
class Pace:
    """Stretches of stepping and the pauses between epochs, newest last."""

    stretches: deque[Stretch] = field(default_factory=lambda: deque(maxlen=STRETCHES_KEPT))
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=PAUSES_KEPT))
    """Seconds from the last step of an epoch to the first of the next."""
    first: StepRecord | None = None
    last: StepRecord | None = None
    steps: int = 0
    """Made since `first`, without it."""
    idle_s: float = 0.0
    """Time since `first` that was not stepping."""
    _steps: int = 0
    _took_s: float = 0.0
    _waited_s: float | None = None
    _made: int = 0
    _usual: dict[int, tuple[int, Usual | None]] = field(default_factory=dict, compare=False)
    """By the number of newest stretches left out: how many stretches there were then, and the result."""

    def add(self, record: StepRecord, *, stepping: bool) -> None:
        """Take in a step; `stepping`: whether the training did nothing else since the previous step."""
        before, self.last = self.last, record
        if before is None or record.step <= before.step or record.at.monotonic_s < before.at.monotonic_s:
            self.first = self.first if before is not None else record
            return
        took_s, made = record.at.seconds_since(before.at), record.step - before.step
        self.steps += made
        if record.epoch != before.epoch:
            self.pauses.append(took_s)
        if record.epoch != before.epoch or not stepping:
            self.idle_s += took_s
            return
        self._steps, self._took_s = self._steps + made, self._took_s + took_s
        if record.data_wait_s is not None:
            self._waited_s = (self._waited_s or 0.0) + record.data_wait_s
        if self._took_s >= STRETCH_S:
            self._close_stretch(record.at)

    def _close_stretch(self, at: Moment) -> None:
        waited_s = None if self._waited_s is None else min(self._waited_s, self._took_s)
        self.stretches.append(Stretch(at=at, steps=self._steps, took_s=self._took_s, waited_s=waited_s))
        self._steps, self._took_s, self._waited_s = 0, 0.0, None
        self._made += 1

    def recent(self, window_s: float, now: Moment) -> tuple[Stretch, ...]:
        """Return the newest stretches, at least three, that cover `window_s` of stepping; () if too few or old."""
        found: list[Stretch] = []
        held_s = 0.0
        for stretch in reversed(self.stretches):
            found.append(stretch)
            held_s += stretch.took_s
            if held_s >= window_s and len(found) >= RECENT_STRETCHES:
                break
        too_old = bool(found) and now.seconds_since(found[0].at) > window_s + 2 * max(STRETCH_S, found[0].took_s)
        if held_s < window_s or len(found) < RECENT_STRETCHES or too_old:
            return ()
        return tuple(reversed(found))

    def usual(self, without: int = 0) -> Usual | None:
        """Return what a step usually takes in this attempt; None before its first minutes are over.

        `without` is the number of newest stretches to leave out, so that they can be compared with the earlier ones.
        """
        made, usual = self._usual.get(without, (-1, None))
        if made != self._made:
            kept = list(self.stretches)[WARM_STRETCHES if self._made <= STRETCHES_KEPT else 0 :]
            usual = _summarize(sorted(stretch.step_s for stretch in kept[: max(0, len(kept) - without)]))
            self._usual[without] = (self._made, usual)
        return usual


def step_s_of(stretches: Sequence[Stretch]) -> float:
    """Return the median seconds per step of several stretches: a single delayed stretch does not count."""
    return median(stretch.step_s for stretch in stretches)


def wait_share_of(stretches: Sequence[Stretch]) -> float | None:
    """Return the median share of time spent waiting for data; None where any stretch lacks it."""
    shares = [stretch.waited_s / stretch.took_s for stretch in stretches if stretch.waited_s is not None]
    return median(shares) if len(shares) == len(stretches) else None


def covered_s(stretches: Sequence[Stretch]) -> float:
    """Return the stepping time that several stretches cover."""
    return sum(stretch.took_s for stretch in stretches)


def _summarize(ordered: list[float]) -> Usual | None:
    if not ordered:
        return None
    return Usual(
        step_s=quantile(ordered, 0.5),
        fast_step_s=quantile(ordered, 0.1),
        slow_step_s=quantile(ordered, 0.9),
        stretches=len(ordered),
    )
