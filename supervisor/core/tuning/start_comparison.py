"""Compares starts as the owner has them with starts of an arm by a t test after each pair, until one verdict is proven.

Blocks of steps are compared by a bound for a known deviation, widened a little. A few starts do not know theirs: of two
pairs one in a hundred has a deviation ten times too small. So a gain is judged by Student's t, whose limit depends on
the degrees of freedom, with the deviation between all starts of the same settings so far. A drift from start to start
cancels in the order A B B A, and is part of that deviation.

Starts may also come in two modes, as by where memory came to lie, and be alike within each. Where every start with the
arm is in the quicker one and every other in the slower one, no test of their times tells that from a gain; only that it
is seldom so of many starts. So an arm is proven by no fewer than that takes, and only where none of them overlap: by
four with it and four without, or three with it and seven without.

From then on there is a look after each pair to the last one, so the test is group sequential: each look spends an
equal share of the error (Pocock's plan, in the form of Lan and DeMets, "Discrete sequential boundaries for clinical
trials", 1983). The limit of a look is the quantile of t for its share alone (as in Jennison and Turnbull, "Exact
calculations for sequential t, chi-squared and F tests", 1991, but without their joint distribution): chance passes one
look as often as its share says whatever the deviation is, and any of them no more often than the sum. Stopping early
for other reasons only lowers that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count

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
"""Of the first look at whether an arm is given up; of the last look, unless more are needed to prove anything."""
PAIRS_FORESEEN = 50
"""Up to so many pairs is it calculated how many more would prove a gain."""
LOOKS = PAIRS_MAX - PAIRS_MIN + 1
"""Each has so large a share of an error. An arm is proven by fewer of them: the rest is for modes that overlap."""
APART = 0.25
"""So many spreads lie between the starts of a proven arm and all others.

Without that a start in the mode of the others, the slowest of the quick ones, was passed over: it had chance adopt
0.63 % of the arms without effect, not 0.4 %, where modes are five spreads apart.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartComparison:
    """The medians of starts so far, in seconds a sample (or a step), and how much starts differ of themselves."""

    error: float = ERROR
    """How often chance may adopt one arm."""
    spare: float = 0.0
    """How much oftener than that modes may look like a gain of this arm: what those before have left of the error."""
    pairs: tuple[tuple[float, float], ...] = ()
    """(owner's, arm's) of each pair, in the order A B B A."""
    before: tuple[float, ...] = ()
    """Logarithms of the medians of starts as the owner has them now, of the arms before: those that are always made."""
    known: tuple[float, ...] = ()
    """The same of all of them."""
    alike: tuple[tuple[float, ...], ...] = ()
    """The same of other settings; a group for each."""

    def after(self, owner_s: float, arm_s: float) -> StartComparison:
        """Return the comparison with one more pair; ValueError for a time that is none."""
        if not (0 < owner_s < math.inf and 0 < arm_s < math.inf):
            raise ValueError(f"a start's median is {owner_s!r} s and {arm_s!r} s; both have to be above 0 and finite")
        return replace(self, pairs=(*self.pairs, (owner_s, arm_s)))

    def next_arm(self, *, is_adopted: bool, goes_on: bool) -> StartComparison:
        """Return the comparison of another arm; `goes_on`: the last start is its first.

        Of the deviation of an arm before only the first two pairs count. These are always made. How many more are
        depends on the deviation that they show, and a trial ends early where it is too small by chance.
        """
        owner, arm = _take_logs(self.pairs[:PAIRS_MIN])
        owner = (*self.before, *owner)
        now, other = (arm, owner) if is_adopted else (owner, arm)
        if goes_on and len(self.pairs) <= PAIRS_MIN:
            now = now[:-1]
        known = _take_logs(self.pairs)[1] if is_adopted else self._starts_of_owner
        known = known[:-1] if goes_on else known
        spare = self.error + self.spare - self._get_modes_chance(self.pairs_to_prove)
        return replace(self, pairs=(), before=now, known=known, alike=(*self.alike, other), spare=spare)

    @property
    def pairs_to_prove(self) -> int:
        """From how many pairs on a gain can be proven: by so many starts that modes look like one seldom enough."""
        most = self.error + self.spare
        return next(pairs for pairs in count(PAIRS_MIN) if self._get_modes_chance(pairs) <= most)

    @property
    def pairs_max(self) -> int:
        """How many pairs are made at most."""
        return max(PAIRS_MAX, self.pairs_to_prove)

    @property
    def is_apart(self) -> bool:
        """Whether every start with the arm was quicker than every other; clearly, once that may prove a gain."""
        between = APART * self.spread if len(self.pairs) >= self.pairs_to_prove else 0.0
        return max(_take_logs(self.pairs)[1]) + between < min(self._starts_of_owner)

    def _get_modes_chance(self, pairs: int) -> float:
        return get_modes_chance(pairs, len(self.known) + pairs)

    @property
    def _starts_of_owner(self) -> tuple[float, ...]:
        return (*self.known, *_take_logs(self.pairs)[0])

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
        mean, pairs = mean_log_gain(self.pairs), len(self.pairs)
        low = mean - self._find_proving_radius(pairs, self.spread)
        high = mean + self._find_radius(pairs, self.spread, IDLE_ERROR / LOOKS)
        return Gain(gain=to_gain(mean), low=to_gain(low), high=to_gain(high))

    def _find_proving_radius(self, pairs: int, spread: float) -> float:
        """Return from which mean on a gain is proven by so many pairs, if starts then differ by `spread`."""
        return self._find_radius(pairs, spread, self.error / LOOKS)

    def _find_radius(self, pairs: int, spread: float, error: float) -> float:
        """Return how far the mean of so many pairs is off by chance in one direction, as often as `error` says."""
        degrees = self._degrees + 2 * (pairs - len(self.pairs))
        return get_upper_quantile(error, degrees) * max(spread, SPREAD_FLOOR) * math.sqrt(2 / pairs)

    def _find_pairs(self, spread: float, most: int) -> int | None:
        """Return by how many pairs, more than there are, the mean would be proven; None: not by `most`."""
        mean = mean_log_gain(self.pairs)
        further = range(max(len(self.pairs) + 1, self.pairs_to_prove), most + 1)
        return next((pairs for pairs in further if mean >= self._find_proving_radius(pairs, spread)), None)

    def verdict(self) -> Verdict | None:
        """Return the verdict once there is one, at the latest after the last pair that is made."""
        pairs = len(self.pairs)
        if pairs < PAIRS_MIN:
            return None
        gain = self.gain()
        if all(math.log(arm / owner) > CLEARLY_SLOWER for owner, arm in self.pairs):
            return Verdict(outcome=Outcome.REFUSED, gain=gain, why=f"slower by {-gain.gain:.0%}", pairs=pairs)
        proven = judge_bounds(gain, pairs, SMALLEST_GAIN)
        may_prove = self.is_apart and pairs >= self.pairs_to_prove
        if proven is not None and (may_prove or proven.outcome is not Outcome.ADOPTED):
            return proven
        # A deviation of few starts often is too large by chance: the least likely one decides whether to go on.
        spread = get_likely_least(self.spread, self._degrees)
        is_hopeful = self.is_apart and gain.gain >= SMALLEST_GAIN
        if is_hopeful and self._find_pairs(spread, self.pairs_max) is not None:
            return None
        return Verdict(outcome=Outcome.NOT_SETTLED, gain=gain, why=self._explain_doubt(gain), pairs=pairs)

    def _explain_doubt(self, gain: Gain) -> str:
        """Return why the arm is not settled, and how many starts more would prove a gain that is worth a change."""
        made = len(self.pairs)
        seen = f"faster by {gain.gain:.1%}" if gain.gain >= 0 else f"slower by {-gain.gain:.1%}"
        why = f"not settled: {seen} after {made} pairs of starts; starts differ by {self.spread:.1%}"
        if gain.gain < SMALLEST_GAIN:
            return why
        pairs = self._find_pairs(self.spread, PAIRS_FORESEEN)
        more = f"about {2 * (pairs - made)}" if pairs is not None else f"more than {2 * (PAIRS_FORESEEN - made)}"
        return f"{why}; {more} starts more would be needed to prove that"


def get_modes_chance(quicker: int, slower: int) -> float:
    """Return how often chance has so many starts all in one of two modes, and so many others all in the other one.

    At most: where a start is in a mode as often as their share says.
    """
    starts = quicker + slower
    return (quicker / starts) ** quicker * (slower / starts) ** slower


def _take_logs(pairs: tuple[tuple[float, float], ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the logarithms of the owner's starts, and of the arm's."""
    return tuple(math.log(owner) for owner, _ in pairs), tuple(math.log(arm) for _, arm in pairs)
