"""Simulates the starts of a tune: how often a gain, or none, is adopted, by its size and by how starts differ.

python tests/bench/start_simulation.py [--runs 20000] [--seed 7] [--part idle] [--part gains]

Each start takes the time of its settings times a deviate. `idle` prints the share of tunes that adopt an arm without
effect, of one arm, of three, and of two behind one that gains 10 %, for several kinds of deviates; `gains` prints for
arms that all gain the same the share of arms found, and the starts of a tune. Pure computation, no clock.
"""

# ruff: noqa: T201 - a benchmark prints; its random numbers are a simulation's

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from supervisor.core.tuning.knob import Kind
from supervisor.core.tuning.restarts import Measured, StartArm, begin_restarts

GAINS = (-0.05, 0.03, 0.05, 0.1, 0.2, 0.5)
SPREADS = (0.005, 0.01, 0.02, 0.05, 0.1)
IDLE: Mapping[str, tuple[float, ...]] = {"one": (0.0,), "three": (0.0,) * 3, "two behind one that gains": (0.1, 0, 0)}

Deviate: TypeAlias = Callable[[random.Random, int], float]
"""By how many spreads the logarithm of a start's time is off; the second argument is how many starts were before."""


def draw_heavy(chance: random.Random, _before: int) -> float:
    """Return a deviate of Student's t with three degrees of freedom, scaled to the same variance."""
    return chance.gauss(0, 1) / math.sqrt(chance.gammavariate(1.5, 2))


def draw_disturbed(chance: random.Random, _before: int) -> float:
    """Return a deviate of which one in ten is five spreads up on the average, by what else the machine does."""
    return chance.gauss(0, 1) + (chance.expovariate(1 / 5) if chance.random() < 0.1 else 0.0)


def draw_mode(apart: float, quick: float = 0.5) -> Deviate:
    """Return what draws one of two modes so many spreads apart, and the quicker one in that share of the starts."""
    return lambda chance, _before: chance.gauss(0, 1) + (0.0 if chance.random() < quick else apart)


DEVIATES: Mapping[str, Deviate] = {
    "normal": lambda chance, _before: chance.gauss(0, 1),
    "heavy tails": draw_heavy,
    "one in ten disturbed": draw_disturbed,
    "slower by a spread each": lambda chance, before: chance.gauss(0, 1) + before,
    "quicker by a spread each": lambda chance, before: chance.gauss(0, 1) - before,
    "warms up, ten spreads": lambda chance, before: chance.gauss(0, 1) - 10 * (1 - math.exp(-before / 3)),
    "two modes, ten spreads apart": draw_mode(10),
    "two modes, a hundred spreads apart": draw_mode(100),
    "two modes, five spreads apart": draw_mode(5),
    "two modes, ten spreads apart, three in ten quick": draw_mode(10, 0.3),
    "three modes, ten spreads apart": lambda chance, _before: chance.gauss(0, 1) + 10 * chance.randrange(3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of simulated tunes."""

    idle: float
    """Share of tunes that adopted an arm without effect."""
    gaining: float
    """Share of the arms that gain that were adopted."""
    starts: float
    """Mean of a tune."""


def simulate(gains: Sequence[float], deviate: Deviate, spread: float, runs: int, seed: int) -> Found:
    """Return what comes of tunes of so many arms, each with its gain."""
    chance = random.Random(seed)
    gain_of = {f"arm{number}": gain for number, gain in enumerate(gains)}
    arms = [StartArm(knob=name, value="on", kind=Kind.SAME_ARITHMETIC) for name in gain_of]
    idle = gaining = starts = 0
    for _ in range(runs):
        trial, before = begin_restarts(arms), 0
        while (wanted := trial.wanted) is not None:
            faster = math.prod(1 + gain_of[arm.knob] for arm in wanted)
            trial = trial.after_start(Measured(median_s=math.exp(spread * deviate(chance, before)) / faster))
            before += 1
        adopted = [gain_of[row.knob] for row in trial.adopted]
        idle += any(gain <= 0 for gain in adopted)
        gaining += sum(gain > 0 for gain in adopted)
        starts += before
    return Found(
        idle=idle / runs, gaining=gaining / runs / max(1, sum(gain > 0 for gain in gains)), starts=starts / runs
    )


def print_idle(runs: int, seed: int) -> None:
    """Print a row for each kind of deviates and each tune: the share that adopts an arm without effect."""
    for name, deviate in DEVIATES.items():
        for arms, gains in IDLE.items():
            found = {spread: simulate(gains, deviate, spread, runs, seed) for spread in SPREADS}
            cells = "  ".join(f"{spread:.1%}: {item.idle:.2%} ({item.starts:.1f})" for spread, item in found.items())
            print(f"{name}; arms without effect: {arms}   {cells}", flush=True)


def print_gains(runs: int, seed: int) -> None:
    """Print a row for each number of arms and each spread: the share of arms that are adopted, and the starts."""
    for arms in (1, 3):
        for spread in SPREADS:
            found = {gain: simulate((gain,) * arms, DEVIATES["normal"], spread, runs, seed) for gain in GAINS}
            cells = "  ".join(
                f"{gain:+.0%}: {item.gaining if gain > 0 else item.idle:.1%} ({item.starts:.1f})"
                for gain, item in found.items()
            )
            print(f"{arms} arms, starts differ by {spread:.1%}   {cells}", flush=True)


def main() -> None:
    """Print the parts that are asked for."""
    parts = {"idle": print_idle, "gains": print_gains}
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--part", choices=list(parts), action="append")
    given = parser.parse_args()
    for part in given.part or parts:
        parts[part](given.runs, given.seed)


if __name__ == "__main__":
    main()
