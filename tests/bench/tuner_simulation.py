"""Simulates tunes: how often a knob without effect, one that does harm, and one that helps are adopted.

    python tests/bench/tuner_simulation.py [TUNES]

Step times have lognormal noise with an AR(1) part, 1 % of steps 2 to 6 times as long, and a drift of 0.1 % a step. Each
tune tries several arms and then confirms what it adopted, as the tuner does. The second table is of tunes that adopt
something: how often a knob without effect is adopted with it, and how often a member of a joint arm stays that costs,
brings nothing or gains. Pure computation, no clock.
"""

# ruff: noqa: T201 - a benchmark prints; its random numbers are a simulation's

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from supervisor.core.tuning.budget import count_left, end_unaffordable
from supervisor.core.tuning.compare import BLOCK_STEPS, DROPPED_STEPS, typical_s
from supervisor.core.tuning.session import Session
from supervisor.core.tuning.trial import Arm

STEP_S = 0.2
NOISES = ((0.03, 0.3), (0.10, 0.3), (0.10, 0.8), (0.25, 0.3))
"""Standard deviation of a step's log time, and how much of it the next step keeps."""
MEMBERS = {"costs 5 %": -0.05, "brings nothing": 0.0, "gains 5 %": 0.05, "gains 11 %": 0.11}


@dataclass
class Machine:
    """Steps whose time depends on the settings, and on much else."""

    gains: Mapping[str, float]
    noise: float
    keep: float
    chance: random.Random
    steps: int = 0
    _state: float = 0.0
    _drift: float = 0.0
    _times: list[float] = field(default_factory=list)

    def block(self, settings: Mapping[str, object]) -> float:
        """Return the time of a typical counted step of one block."""
        made = [self._step_s(settings) for _ in range(BLOCK_STEPS + DROPPED_STEPS)]
        return typical_s(tuple(made[DROPPED_STEPS:]))

    def _step_s(self, settings: Mapping[str, object]) -> float:
        self.steps += 1
        self._state = self.keep * self._state + math.sqrt(1 - self.keep**2) * self.chance.gauss(0, self.noise)
        self._drift += self.chance.gauss(0, 0.001)
        speed = math.prod(1 + self.gains[name] for name in settings)
        hiccup = self.chance.uniform(2, 6) if self.chance.random() < 0.01 else 1.0
        return STEP_S / speed * math.exp(self._state + self._drift) * hiccup


def tune(
    gains: Mapping[str, float], noise: float, keep: float, seed: int, along: tuple[str, ...] = ()
) -> tuple[Session, int]:
    """Return a tune of one value of each knob, ended, and its steps; `along`: of one arm with the first."""
    machine = Machine(gains, noise, keep, random.Random(seed))
    joint = tuple((name, True) for name in along)
    arms = [Arm(knob=name, value=True) for name in gains]
    session = Session(queue=(replace(arms[0], along=joint, falls_apart=True), *arms[1:]))._next()
    while session.wanted is not None:
        left, to_end = (
            count_left(machine.steps, STEP_S * machine.steps, STEP_S, to_end=to_end) for to_end in (False, True)
        )
        over = end_unaffordable(session, left, to_end, count_steps)
        session = over if over is not None else session.after_block(machine.block(session.wanted))
    return session, machine.steps


def count_steps(_held: Mapping[str, object], _wanted: Mapping[str, object]) -> int:
    """Return how many steps a block takes."""
    return BLOCK_STEPS + DROPPED_STEPS


def adopted_share(gain: float, tunes: int, noise: float, keep: float, others: int = 3) -> tuple[float, int]:
    """Return the share of knobs with this gain that were adopted, and the median of the steps of a tune."""
    found: Counter[bool] = Counter()
    steps = []
    gains = {f"knob{number}": gain for number in range(others + 1)} if gain <= 0 else {"knob": gain}
    for seed in range(tunes):
        session, made = tune(gains, noise, keep, seed)
        steps.append(made)
        found.update({True: len(session.adopted), False: len(gains) - len(session.adopted)})
    return found[True] / sum(found.values()), int(median(steps))


def found_last(gain: float, tunes: int, noise: float, keep: float, before: int = 7) -> tuple[float, int]:
    """Return in what share of tunes a gain was found by the last of several arms, and the most steps of a tune."""
    found, most = 0, 0
    for seed in range(tunes):
        session, made = tune({**{f"knob{number}": 0.0 for number in range(before)}, "last": gain}, noise, keep, seed)
        found += "last" in session.settings
        most = max(most, made)
    return found / tunes, most


def adopted_beside(gain: float, tunes: int, noise: float, keep: float, others: int = 3) -> float:
    """Return the share of knobs without effect that were adopted with one that gains."""
    names = [f"knob{number}" for number in range(others)]
    made = [tune({"gains": gain, **dict.fromkeys(names, 0.0)}, noise, keep, seed)[0] for seed in range(tunes)]
    return sum(name in session.settings for session in made for name in names) / (others * tunes)


def kept_members(gain: float, tunes: int, noise: float, keep: float) -> float:
    """Return in what share of tunes a member stayed of a joint arm that gains 30 % without it."""
    gains = {"gains": 0.3, "member": gain}
    made = [tune(gains, noise, keep, seed, along=("member",))[0] for seed in range(tunes)]
    return sum("member" in session.settings for session in made) / tunes


def main() -> None:
    """Print the table."""
    tunes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(
        f"{tunes} tunes a cell; knobs without effect and harmful ones four to a tune; in brackets its median of steps"
    )
    print("last of 8: a gain of 11 % behind seven arms without any; the most steps of a tune")
    names = ("no effect", "-5 %", "+3.5 %", "+5.3 %", "+11 %", "+50 %", "last of 8")
    print(f"{'noise (AR)':12} {names[0]:>10} {names[1]:>8} " + " ".join(f"{name:>14}" for name in names[2:]))
    for noise, keep in NOISES:
        cells = [f"{adopted_share(gain, tunes, noise, keep)[0]:.2%}" for gain in (0.0, -0.05)]
        for gain in (0.035, 0.053, 0.11, 0.5):
            share, steps = adopted_share(gain, max(100, tunes // 5), noise, keep)
            cells.append(f"{share:.0%} ({steps})")
        share, most = found_last(0.11, max(100, tunes // 5), noise, keep)
        cells.append(f"{share:.0%} ({most})")
        print(f"{noise:4.0%} ({keep})   {cells[0]:>10} {cells[1]:>8} " + " ".join(f"{cell:>14}" for cell in cells[2:]))
    print("adopted with a knob that gains 30 %: knobs without effect, three to a tune; members of one arm with it")
    print(f"{'noise (AR)':12} {'no effect':>10} " + " ".join(f"{name:>14}" for name in MEMBERS))
    for noise, keep in NOISES:
        kept = [kept_members(gain, max(100, tunes // 5), noise, keep) for gain in MEMBERS.values()]
        beside = adopted_beside(0.3, tunes, noise, keep)
        print(f"{noise:4.0%} ({keep})   {beside:>10.2%} " + " ".join(f"{share:>14.0%}" for share in kept))


if __name__ == "__main__":
    main()
