"""Compares the owner's settings with an arm by blocks of steps in the order A B B A, until one verdict is proven.

The pairs are differences of the logarithms of two blocks' typical steps, so a few very long ones move nothing and a
drift of the pace cancels within the four blocks (`trial.py` has another order for some). A gain is judged by Student's
t, whose limit depends on how many blocks the deviation is known from: that of two pairs often is far too small by
chance. It is the deviation of blocks of the same settings within each four of them, so that a pace that changes from
four to four does not widen it, and of those of the trials before with the same workers, unless blocks differ clearly
more by now.

There are a few looks, and each has a share of the error (group-sequential, as Lan and DeMets, "Discrete sequential
boundaries for clinical trials", 1983): the limit of a look is the quantile of t for its share alone. What passes one
look often passes the next ones too: chance passes any of them in 0.48 % of comparisons without gain that are not given
up, less than the sum of the shares, and no more often where blocks differ more.

That an arm cannot gain, which changes nothing of a training, is judged by the upper bound of Robbins' normal mixture
(Howard et al., "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021, proposition 5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from supervisor.core.stats.median import median, spread
from supervisor.core.stats.student import get_likely_least, get_upper_quantile

SMALLEST_GAIN = 0.03
SPREADS = 1.2
"""A gain below this many times the spread between two blocks of the owner's own settings is not looked for.

With 1.5 times, noise of 10 % hid a tenth of the gains of 11 % to the last pair. The limit of t keeps chance out.
"""
LOOKS: Mapping[int, float] = {2: 0.001, 3: 0.0005, **dict.fromkeys((4, 5, 6, 8, 10, 13, 17, 22, 30), 0.0006)}
"""After how many pairs it is asked whether a gain is proven, and how often chance passes each of these looks."""
CONFIRMING_LOOKS: Mapping[int, float] = {pairs: 0.033 / pairs for pairs in range(2, 31)}
"""The same of what was proven for itself, and is compared once more together."""
NOISIER = 1.5
"""Blocks that differ more than so many times as much as those of the trials before are judged by themselves."""
IDLE_ERROR = 0.05
"""How often an arm that gains may be given up as one that cannot."""
PAIRS_MIN = 4
PAIRS_MAX = 30
"""Most arms are settled or given up long before. In noise of 10 % so many prove 87 % of the gains of 11 %."""
HOPELESS_PAIRS_MIN = 5
"""An arm whose mean gain is not worth a change after as many is given up: its steps are better spent on others."""
BEYOND_REACH_PAIRS_MIN = 6
"""An arm that differs too much from pair to pair to be proven is given up after as many."""
SLOWER_PAIRS_MIN = 2
"""An arm this clearly slower is given up early: every further step of it is lost."""
CLEARLY_SLOWER = math.log(1.08)
CLEARLY_FASTER_PAIRS_MIN = 2
CLEARLY_FASTER = math.log(1.12)
"""An arm whose every pair, and whose lower bound, lie this far up is settled early."""
IDLE_PAIRS_MIN = 2
"""An arm whose upper bound lies below the smallest gain is given up after as many."""
VAIN_PAIRS_MIN = 3
IDLE_GAIN = SMALLEST_GAIN / 2
"""An arm that is no faster on the average is given up after as many; after one more, one whose mean gain is less."""
MIXTURE = 1.0
"""Where the bound is tightest: at about ten pairs."""
SPREAD_FLOOR = 0.004
"""No two blocks are more alike than this; a smaller spread is one of few pairs."""
BLOCK_STEPS = 6
"""Short: noise that steps keep for a while is alike in blocks that follow soon, and cancels in their difference."""
BLOCK_S = 0.3
SLOW_BLOCK_STEPS = 5
SLOW_BLOCK_S = 1.5
"""So many steps that take as long are a block: what makes a step uneven is short then."""
LONG = 4.0
"""Spreads above the median, up to which a step counts: as much of it as a longer one."""
DROPPED_STEPS = 1
"""Steps after each switch that are not counted: the switch itself is in it."""
ASKED_STEPS, ASKED_STEP_S = 2, 0.3
"""Further ones that a GPU is asked for ahead, and computes with the settings before; none where a step takes longer."""
STEADY = 0.02
"""Steps that differ by less than this share of their time are paced by the GPU, and the host is ahead of it."""
FIRST_DROPPED_STEPS = 6
"""After the first switch to an arm: memory is allocated, and kernels are looked for."""


class Outcome(Enum):
    """What a comparison came to."""

    ADOPTED = "adopted"
    REFUSED = "refused"
    NOT_SETTLED = "not settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """By what factor an arm is faster, less one: 0.1 is 10 % more samples a second."""

    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of a comparison."""

    outcome: Outcome
    gain: Gain
    why: str
    pairs: int
    remark: str = ""
    """What else it rests on, for a person."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The medians of blocks so far, in seconds a sample (or a step): (owner's, arm's) a pair."""

    pairs: tuple[tuple[float, float], ...] = ()
    looks: Mapping[int, float] = field(default_factory=lambda: LOOKS)
    squares: float = 0.0
    """Of the deviations of blocks of the same settings in trials before, of which the degrees of freedom are known."""
    degrees: int = 0
    slower_pairs_min: int = SLOWER_PAIRS_MIN

    def after(self, owner_s: float, arm_s: float) -> Comparison:
        """Return the comparison with one more pair; ValueError for a time that is none."""
        if not (0 < owner_s < math.inf and 0 < arm_s < math.inf):
            raise ValueError(f"a block's median is {owner_s!r} s and {arm_s!r} s; both have to be above 0 and finite")
        return replace(self, pairs=(*self.pairs, (owner_s, arm_s)))

    def next_trial(self) -> Comparison:
        """Return the comparison of another arm, to whose blocks those of this one are alike.

        Its first four pairs count: to go on with more depends on what these have shown.
        """
        first = replace(self, pairs=self.pairs[:PAIRS_MIN])
        if len(first.pairs) < 2:
            return Comparison(squares=self.squares, degrees=self.degrees)
        degrees = count_degrees(len(first.pairs))
        return Comparison(
            squares=self.squares + degrees * first.deviation * first.deviation, degrees=self.degrees + degrees
        )

    @property
    def spread(self) -> float:
        """The standard deviation between neighbouring blocks of the owner's settings, as a share of the time."""
        logs = [math.log(owner) for owner, _ in self.pairs]
        steps = [later - earlier for earlier, later in pairwise(logs)]
        return math.sqrt(sum(step * step for step in steps) / len(steps) / 2) if steps else 0.0

    @property
    def smallest_gain(self) -> float:
        """The gain that is worth a change here."""
        return max(SMALLEST_GAIN, SPREADS * self.spread)

    def gain(self) -> Gain:
        """Return the gain, with the bound that proves it and the one that excludes it."""
        if len(self.pairs) < 2:
            return Gain(gain=0.0, low=-1.0, high=math.inf)
        mean, deviation = self._mean_and_deviation()
        looked = self._looked
        deviation_of_look, degrees = looked.find_deviation()
        low = mean_log_gain(looked.pairs) - self._find_radius(len(looked.pairs), deviation_of_look, degrees)
        high = mean + _radius(deviation, len(self.pairs), IDLE_ERROR)
        return Gain(gain=math.expm1(mean), low=math.expm1(low), high=to_gain(high))

    @property
    def _looked(self) -> Comparison:
        """The comparison at the newest look."""
        return replace(self, pairs=self.pairs[: max(look for look in self.looks if look <= len(self.pairs))])

    @property
    def deviation(self) -> float:
        """The standard deviation of blocks of the same settings within four blocks, as a share of the time.

        Of two pairs at least. Each four has a level of its own, and all have one gain.
        """
        half = mean_log_gain(self.pairs) / 2
        squares = 0.0
        for first in range(0, len(self.pairs), 2):
            four = self.pairs[first : first + 2]
            logs = [log for owner, arm in four for log in (math.log(owner) - half, math.log(arm) + half)]
            level = math.fsum(logs) / len(logs)
            squares += math.fsum((log - level) ** 2 for log in logs)
        return math.sqrt(squares / count_degrees(len(self.pairs)))

    def find_deviation(self) -> tuple[float, int]:
        """Return the deviation that a gain is judged by, with its degrees of freedom.

        That of few pairs is hardly known: the trials before make it known better. It is no smaller than their own.
        """
        own, degrees = self.deviation, count_degrees(len(self.pairs))
        if not self.degrees or own > NOISIER * math.sqrt(self.squares / self.degrees):
            return own, degrees
        degrees += self.degrees
        pooled = math.sqrt((self.squares + own * own * (degrees - self.degrees)) / degrees)
        return max(own, pooled), degrees

    def _find_radius(self, pairs: int, deviation: float, degrees: int) -> float:
        """Return from which mean on a gain is proven by so many pairs, if blocks then have that deviation."""
        of_pairs = max(math.sqrt(2) * deviation, SPREAD_FLOOR)
        return get_upper_quantile(self.looks[pairs], degrees) * of_pairs / math.sqrt(pairs)

    @property
    def is_beyond_reach(self) -> bool:
        """Whether the gain seen would not be proven by all the pairs that are made.

        A deviation of few blocks often is too large by chance: the least likely one decides.
        """
        if len(self.pairs) < BEYOND_REACH_PAIRS_MIN:
            return False
        deviation, degrees = self.find_deviation()
        further = count_degrees(PAIRS_MAX) - count_degrees(len(self.pairs))
        least = get_likely_least(deviation, degrees)
        return mean_log_gain(self.pairs) < self._find_radius(PAIRS_MAX, least, degrees + further)

    def _mean_and_deviation(self) -> tuple[float, float]:
        mean, count = mean_log_gain(self.pairs), len(self.pairs)
        variance = math.fsum((math.log(owner / arm) - mean) ** 2 for owner, arm in self.pairs) / (count - 1)
        return mean, max(math.sqrt(variance) * _doubt(count), SPREAD_FLOOR)

    def verdict(self) -> Verdict | None:
        """Return the verdict once there is one, at the latest after the last pair that is made."""
        count, gain, least = len(self.pairs), self.gain(), self.smallest_gain
        slower = [math.log(arm / owner) for owner, arm in self.pairs]
        if count >= self.slower_pairs_min and all(log > CLEARLY_SLOWER for log in slower):
            why = f"slower by {-math.expm1(-math.fsum(slower) / count):.0%}"
            return Verdict(outcome=Outcome.REFUSED, gain=gain, why=why, pairs=count)
        clear = all(math.log(owner / arm) > CLEARLY_FASTER for owner, arm in self.pairs)
        early = count >= CLEARLY_FASTER_PAIRS_MIN and clear and gain.low > math.expm1(CLEARLY_FASTER)
        idle = count >= IDLE_PAIRS_MIN and gain.high < SMALLEST_GAIN
        worth = IDLE_GAIN if count >= PAIRS_MIN else 0.0
        vain = count >= VAIN_PAIRS_MIN and (gain.gain < worth or self.is_beyond_reach)
        if count < PAIRS_MIN and not (early or idle or vain):
            return None
        proven = judge_bounds(gain, count, least)
        if proven is not None:
            return proven
        hopeless = count >= HOPELESS_PAIRS_MIN and gain.gain < SMALLEST_GAIN
        if gain.high < least or vain or hopeless or count >= PAIRS_MAX:
            noise = f"blocks of one setting differ by {self.spread:.1%}"
            why = f"not settled: {gain.low:.1%} to {gain.high:.1%} after {count} pairs of blocks; {noise}"
            return Verdict(outcome=Outcome.NOT_SETTLED, gain=gain, why=why, pairs=count)
        return None


def judge_bounds(gain: Gain, pairs: int, least: float) -> Verdict | None:
    """Return the verdict that the bounds of a gain prove: one of at least `least`, or none that is worth a change."""
    if gain.low > 0 and gain.gain >= least:
        why = f"faster by {gain.gain:.1%} ({gain.low:.1%} to {gain.high:.1%})"
        return Verdict(outcome=Outcome.ADOPTED, gain=gain, why=why, pairs=pairs)
    if gain.high < SMALLEST_GAIN:
        why = f"slower by {-gain.gain:.1%}" if gain.high < 0 else f"gains at most {gain.high:.1%}"
        return Verdict(outcome=Outcome.REFUSED, gain=gain, why=why, pairs=pairs)
    return None


def mean_log_gain(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean logarithm of how many times as fast the arm is, of (owner's, arm's) times."""
    return math.fsum(math.log(owner / arm) for owner, arm in pairs) / len(pairs)


def to_gain(log: float) -> float:
    """Return the gain of a logarithm, infinite where it is beyond all measure."""
    return math.expm1(log) if log < 700 else math.inf


def find_most_of(without: Gain) -> float:
    """Return what a value gains at most, from the gain without it.

    The bound that excludes a gain lies as far below it as above; the one that proves a gain is further away.
    """
    if without.gain <= -1:
        return math.inf
    log = math.log1p(without.high) - 2 * math.log1p(without.gain)
    return math.expm1(log) if log < math.log1p(SMALLEST_GAIN) else math.inf


def block_is_complete(step_s: tuple[float, ...], steps: int = BLOCK_STEPS) -> bool:
    """Whether the counted steps of a block are enough: `steps`, and the time of a block; fewer where they are slow."""
    spent_s = math.fsum(step_s)
    slow = steps == BLOCK_STEPS and len(step_s) >= SLOW_BLOCK_STEPS and spent_s >= SLOW_BLOCK_S
    return slow or (len(step_s) >= steps and spent_s >= BLOCK_S)


def count_asked(step_s: Sequence[float]) -> int:
    """Return how many of the first steps after a switch are still of the settings before, or of neither.

    Steps of a ResNet-50 that its GPU held back were half as long as the later ones for three steps, until its host was
    as far ahead as it can be; of one that its host held back, the second was as long as any.
    """
    later = step_s[ASKED_STEPS:]
    if len(later) < 2:
        return 0
    middle_s = median(later)
    is_steady = spread(later, middle_s) < STEADY * middle_s
    return ASKED_STEPS if is_steady and middle_s < ASKED_STEP_S else 0


def typical_s(step_s: tuple[float, ...]) -> float:
    """Return the mean time of a block's steps, in the unit of its times, of each of which no more counts than LONG.

    The spread is that of the quicker half, which no hiccup widens. A step of a training that its host holds back often
    is as much longer as the next one is shorter: the mean of all of them is steadier there than that of the middle
    ones, by a sixth to a third of its variance, and it is no less steady elsewhere.
    """
    ordered, middle = sorted(step_s), median(step_s)
    quicker = ordered[: (len(ordered) + 1) // 2]
    spread = math.sqrt(math.fsum((middle - step) ** 2 for step in quicker) / len(quicker))
    return math.fsum(min(step, middle + LONG * spread) for step in ordered) / len(ordered)


def divide_s(step_s: tuple[float, ...], parts: int) -> tuple[float, ...]:
    """Return the same of each of some equal parts of a block's steps; ValueError where there are fewer steps."""
    size = len(step_s) // parts
    if not size:
        raise ValueError(f"{len(step_s)} steps make no {parts} parts")
    return tuple(typical_s(step_s[size * part : size * (part + 1)]) for part in range(parts))


def median_s(step_s: tuple[float, ...]) -> float:
    """Return the time of a block's median step, in the unit of its times."""
    return median(step_s)


def mean_times(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the owner's mean time and the arm's, geometric as their quotients are compared."""
    return _geometric_mean([owner for owner, _ in pairs]), _geometric_mean([arm for _, arm in pairs])


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def count_degrees(pairs: int) -> int:
    """Return the degrees of freedom of the deviation of so many pairs: blocks less levels of fours, and the gain."""
    return 2 * pairs - (pairs + 1) // 2 - 1


def _doubt(count: int) -> float:
    """Return by how much the deviation of so few pairs is taken larger: as three quarters of such samples say."""
    return 1 + 1.5 / count


def _radius(deviation: float, count: int, error: float) -> float:
    scale = count + MIXTURE
    return deviation * math.sqrt(scale * math.log(scale / (MIXTURE * error**2))) / count
