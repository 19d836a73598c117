"""Simulates the starts of a tune: how often a gain is adopted, by its size and by how much starts differ of themselves.

python tests/bench/start_simulation.py [--runs 4000]

Each start takes the time of its settings times a normal deviate; every arm of a tune has the same gain, or none. A row
names the arms, the spread between starts, and for each gain the share of tunes that adopted any arm and their starts.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import math
import random

from supervisor.core.tuning.knob import Kind
from supervisor.core.tuning.restarts import Measured, StartArm, begin_restarts

GAINS = (-0.05, 0.0, 0.03, 0.05, 0.1, 0.2, 0.5)
SPREADS = (0.005, 0.01, 0.02, 0.05)


def simulate(arms: int, gain: float, spread: float, runs: int) -> tuple[float, float]:
    """Return the share of tunes that adopted an arm, and how many starts a tune took."""
    chance = random.Random(7)
    tried = [StartArm(knob=f"arm{number}", value="on", kind=Kind.SAME_ARITHMETIC) for number in range(arms)]
    adopted = starts = 0
    for _ in range(runs):
        trial = begin_restarts(tried)
        while (wanted := trial.wanted) is not None:
            faster = (1 + gain) ** len(wanted)
            trial = trial.after_start(Measured(median_s=math.exp(chance.gauss(0, spread)) / faster))
            starts += 1
        adopted += bool(trial.adopted)
    return adopted / runs, starts / runs


def main() -> None:
    """Print a row for each number of arms and each spread."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=4000)
    runs = parser.parse_args().runs
    for arms in (1, 3):
        for spread in SPREADS:
            found = {gain: simulate(arms, gain, spread, runs) for gain in GAINS}
            cells = "  ".join(f"{gain:+.0%}: {share:.1%} ({starts:.1f})" for gain, (share, starts) in found.items())
            print(f"{arms} arms, starts differ by {spread:.1%}   {cells}", flush=True)


if __name__ == "__main__":
    main()
