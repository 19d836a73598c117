"""Compares starts as the owner has them with starts of an arm by a t test after each pair, until one verdict is proven.

Blocks of steps are compared by a bound for a known deviation, widened a little. A few starts do not know theirs: of two
pairs one in a hundred has a deviation ten times too small. So a gain is judged by Student's t, whose limit depends on
the degrees of freedom, with the deviation between all starts of the same settings so far. A drift from start to start
cancels in the order A B B A, and is part of that deviation.

There is a look after each pair from the second to the last one, so the test is group sequential: each look spends an
equal share of the error (Pocock's plan, in the form of Lan and DeMets, "Discrete sequential boundaries for clinical
trials", 1983). The limit of a look is the quantile of t for its share alone (as in Jennison and Turnbull, "Exact
calculations for sequential t, chi-squared and F tests", 1991, but without their joint distribution): chance passes one
look as often as its share says whatever the deviation is, and any of them no more often than the sum. Stopping early
for other reasons only lowers that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from supervisor.core.stats.student import get_likely_least, get_upper_quantile
from supervisor.core.tuning.compare import (
    CLEARLY_SLOWER,
    SMALLEST_GAIN,
    SPREAD_FLOOR,
    Gain,
    Outcome,
    Verdict,
    judge_bounds,
    mean_log_gain,
    to_gain,
)

ERROR = 0.005
"""How often chance may adopt an arm that is no gain, at most: of all arms of a tune together."""
IDLE_ERROR = 0.05
"""How often an arm that gains may be refused as one that cannot: it costs a gain, and changes nothing of a training."""
PAIRS_MIN, PAIRS_MAX = 2, 6
PAIRS_FORESEEN = 50
"""Up to so many pairs is it calculated how many more would prove a gain."""
LOOKS = PAIRS_MAX - PAIRS_MIN + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartComparison:
    """The medians of starts so far, in seconds a sample (or a step), and how much starts differ of themselves."""

    error: float = ERROR
    """How often chance may adopt one arm."""
    pairs: tuple[tuple[float, float], ...] = ()
    """(owner's, arm's) of each pair, in the order A B B A."""
    before: tuple[float, ...] = ()
    """Logarithms of the medians of starts as the owner has them now, of the arms before."""
    alike: tuple[tuple[float, ...], ...] = ()
    """The same of other settings; a group for each."""

    def after(self, owner_s: float, arm_s: float) -> StartComparison:
        """Return the comparison with one more pair; ValueError for a time that is none."""
        if not (0 < owner_s < math.inf and 0 < arm_s < math.inf):
            raise ValueError(f"a start's median is {owner_s!r} s and {arm_s!r} s; both have to be above 0 and finite")
        return replace(self, pairs=(*self.pairs, (owner_s, arm_s)))

    def next_arm(self, *, is_adopted: bool, goes_on: bool) -> StartComparison:
        """Return the comparison of another arm; `goes_on`: the last start is its first.

        Of an arm before only the first two pairs count. These are always made. How many more are depends on the
        deviation that they show, and a trial ends early where it is too small by chance.
        """
        owner, arm = _take_logs(self.pairs[:PAIRS_MIN])
        owner = (*self.before, *owner)
        now, other = (arm, owner) if is_adopted else (owner, arm)
        if goes_on and len(self.pairs) <= PAIRS_MIN:
            now = now[:-1]
        return replace(self, pairs=(), before=now, alike=(*self.alike, other))

    @property
    def spread(self) -> float:
        """The standard deviation between starts of the same settings, as a share of the time."""
        squares = 0.0
        for logs in self._groups:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((value - mean) ** 2 for value in logs)
        return math.sqrt(squares / self._degrees) if self._degrees else 0.0

    @property
    def _groups(self) -> tuple[tuple[float, ...], ...]:
        owner, arm = _take_logs(self.pairs)
        return tuple(filter(None, (*self.alike, (*self.before, *owner), arm)))

    @property
    def _degrees(self) -> int:
        return sum(len(logs) - 1 for logs in self._groups)

    def gain(self) -> Gain:
        """Return the gain, with the bound that proves it and the one that excludes it; after two pairs at least."""
        mean = mean_log_gain(self.pairs)
        low = mean - self._find_radius(len(self.pairs), self.spread, self.error)
        high = mean + self._find_radius(len(self.pairs), self.spread, IDLE_ERROR)
        return Gain(gain=to_gain(mean), low=to_gain(low), high=to_gain(high))

    def _find_radius(self, pairs: int, spread: float, error: float) -> float:
        """Return from which mean on a gain is proven by so many pairs, if starts then differ by `spread`."""
        degrees = self._degrees + 2 * (pairs - len(self.pairs))
        return get_upper_quantile(error / LOOKS, degrees) * max(spread, SPREAD_FLOOR) * math.sqrt(2 / pairs)

    def _find_pairs(self, spread: float, most: int) -> int | None:
        """Return by how many pairs, more than there are, the mean would be proven; None: not by `most`."""
        mean = mean_log_gain(self.pairs)
        further = range(len(self.pairs) + 1, most + 1)
        return next((pairs for pairs in further if mean >= self._find_radius(pairs, spread, self.error)), None)

    def verdict(self) -> Verdict | None:
        """Return the verdict once there is one, at the latest after the last pair that is made."""
        count = len(self.pairs)
        if count < PAIRS_MIN:
            return None
        gain = self.gain()
        if all(math.log(arm / owner) > CLEARLY_SLOWER for owner, arm in self.pairs):
            return Verdict(outcome=Outcome.REFUSED, gain=gain, why=f"slower by {-gain.gain:.0%}", pairs=count)
        proven = judge_bounds(gain, count, SMALLEST_GAIN)
        if proven is not None:
            return proven
        # A deviation of few starts often is too large by chance: the least likely one decides whether to go on.
        spread = get_likely_least(self.spread, self._degrees)
        if gain.gain >= SMALLEST_GAIN and self._find_pairs(spread, PAIRS_MAX) is not None:
            return None
        return Verdict(outcome=Outcome.NOT_SETTLED, gain=gain, why=self._explain_doubt(gain), pairs=count)

    def _explain_doubt(self, gain: Gain) -> str:
        """Return why the arm is not settled, and how many starts more would prove a gain that is worth a change."""
        count = len(self.pairs)
        seen = f"faster by {gain.gain:.1%}" if gain.gain >= 0 else f"slower by {-gain.gain:.1%}"
        why = f"not settled: {seen} after {count} pairs of starts; starts differ by {self.spread:.1%}"
        if gain.gain < SMALLEST_GAIN:
            return why
        pairs = self._find_pairs(self.spread, PAIRS_FORESEEN)
        more = f"about {2 * (pairs - count)}" if pairs is not None else f"more than {2 * (PAIRS_FORESEEN - count)}"
        return f"{why}; {more} starts more would be needed to prove that"


def _take_logs(pairs: tuple[tuple[float, float], ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the logarithms of the owner's starts, and of the arm's."""
    return tuple(math.log(owner) for owner, _ in pairs), tuple(math.log(arm) for _, arm in pairs)
