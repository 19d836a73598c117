"""Lengths of the gradients of each layer, over all calls of a replay: rounding turns a gradient, a fault may scale it.

Gates that flip make another gradient of each call of a young net, and none of its differences tells a gradient that is
a fifth too small from a right one. Its length hardly changes, in no direction, and another way in the next call.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

SPREADS = 6.0
"""Times the spread of a mean of so many calls, by that of single ones, that their median may be off.

A model has hundreds of layers, and a median spreads by a quarter more.
"""
NORMAL = 1.48
"""Times the median distance is the spread of what is spread normally."""
LEAST = 1e-3
"""Share that is none: short gradients of what nearly cancels, as in a softmax, round by more than shakes show."""
CALLS_MIN = 4
"""Of fewer the spread is not known well enough to judge each of some hundred layers by it."""
TURNED_MAX = 0.5
"""Share of a gradient by which its projection may change with a shake; what changes by more is rounding alone."""
ALL = -1
"""Stands for a layer: all of them together."""


class Stretch(NamedTuple):
    """A layer's gradient in one call."""

    scale: float
    """By which share it is longer than the owner's; 0 where length and projection do not agree in which way."""
    least: float
    """By which share both are off at least, whichever way."""
    kept: float
    """Its projection on the owner's, as a share of that."""


def find_layers(models: List[Any], params: List[Any]) -> List[int]:
    """Return the number of the layer of each weight: those that a module holds itself are one layer's.

    A bias alone is often nothing but rounding, as before a BatchNorm.
    """
    holders = [module for model in models for module in model.modules()]
    found = {id(param): number for number, module in enumerate(holders) for param in module._parameters.values()}
    return [found.get(id(param), len(holders) + number) for number, param in enumerate(params)]


def find_stretch(own: float, seen: float, apart: float) -> Optional[Stretch]:
    """Return how a gradient is scaled, given the squares of the owner's, of it, and of their difference.

    Noise of its own makes it longer and leaves the projection; noise that turns it makes the projection smaller and
    leaves the length. What is scaled has both scaled. None where there is nothing to compare.
    """
    if not (own > 0 and math.isfinite(own + seen + apart)):
        return None
    longer, kept = (seen / own) ** 0.5 - 1, (own + seen - apart) / (2 * own)
    smaller = min(longer, kept - 1, key=abs)
    return Stretch(smaller if longer * (kept - 1) > 0 else 0.0, abs(smaller), kept)


def sum_layers(layers: Sequence[int], squares: Sequence[Tuple[float, float, float]]) -> Iterator[Tuple[int, Stretch]]:
    """Yield each layer of one call, and all of them, given the layer and the three squares of each weight."""
    sums: Dict[int, List[float]] = {}
    for layer, three in zip(layers, squares):
        for place in (layer, ALL):
            sums[place] = [total + square for total, square in zip(sums.get(place, (0.0, 0.0, 0.0)), three)]
    for place, (own, seen, apart) in sums.items():
        stretch = find_stretch(own, seen, apart)
        if stretch is not None:
            yield place, stretch


def explain(arm: Sequence[Stretch], shaken: Sequence[Stretch], least: float) -> Optional[Tuple[float, float]]:
    """Return how far an arm's gradients of a layer are scaled in the median of its calls, and what is explained of it.

    By rounding: as much as shakes scale those of single calls. By chance: what differs from call to call. Medians: few
    words of a young decoder, or a box that is assigned another way, scale those of some calls as no fault does. None
    where the layer tells nothing.
    """
    if len(arm) < CALLS_MIN or not shaken or median(abs(item.kept - 1) for item in shaken) > TURNED_MAX:
        return None
    middle = median(item.scale for item in arm)
    chance = NORMAL * median(abs(item.scale - middle) for item in arm)
    rounding = NORMAL * median(item.least for item in shaken)
    return abs(middle), max(least, SPREADS * max(chance, rounding) / len(arm) ** 0.5)
