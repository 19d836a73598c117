"""Plants knobs that do harm into simulated tunes, and counts how many are adopted: none may be.

    python tests/bench/tuner_harm.py [TUNES [FIRST SEED]]

The losses are those of a training that hardly learns any more, or of a young one whose losses fall in a curve. Each
harmful knob is 30 % faster, except the slower one, and stands beside one that helps and one without effect. What is
seen of a block (losses, gradient norms, memory) has the noise of a real training. Silently wrong here is a loss that
the replay of kept batches did not show; what it does show is refused by the agent before a step is made.
"""

# ruff: noqa: T201 - a benchmark prints; its random numbers are a simulation's

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping

from tuner_simulation import Machine

from supervisor.core.tuning.compare import BLOCK_STEPS
from supervisor.core.tuning.guards import Block, Memory
from supervisor.core.tuning.session import Session
from supervisor.core.tuning.trial import Arm

GB = 1_000_000_000
MEMORY = Memory(card_bytes=32 * GB, host_bytes=64 * GB)
FASTER = 0.3
Seen = Callable[[random.Random, int, float], Block]
COURSES: Mapping[str, Callable[[int], float]] = {
    "settled": lambda block: 2.0 * math.exp(-0.002 * block),
    "young": lambda block: 1.0 + 2.0 * math.exp(-0.06 * block),
}
"""The level of losses, by the number of blocks that were made."""


def _losses(chance: random.Random, level: float, width: float) -> tuple[float, ...]:
    return tuple(chance.gauss(level, width) for _ in range(BLOCK_STEPS))


def _norms(chance: random.Random, bursting: float) -> tuple[float, ...]:
    """Return norms of gradients as young decoders have them: steady ones, and some up to hundreds of times as large."""
    return tuple(
        0.5 * (10 ** chance.uniform(0.5, 3) if chance.random() < bursting else chance.gauss(1, 0.02))
        for _ in range(BLOCK_STEPS)
    )


def _healthy(chance: random.Random, block: int, level: float) -> Block:
    return Block(
        grad_norms=_norms(chance, 0.2),
        first_step=BLOCK_STEPS * block,
        losses=_losses(chance, level, 0.1),
        gpu_bytes=(8 * GB,) * BLOCK_STEPS,
        rss_bytes=(4 * GB, 4 * GB),
        available_bytes=40 * GB,
    )


def _wrong(chance: random.Random, block: int, level: float) -> Block:
    return Block(first_step=BLOCK_STEPS * block, losses=_losses(chance, level + 0.12, 0.1))


def _unstable(chance: random.Random, block: int, level: float) -> Block:
    return Block(first_step=BLOCK_STEPS * block, losses=_losses(chance, level, 0.7))


def _bursting(chance: random.Random, block: int, level: float) -> Block:
    return Block(
        first_step=BLOCK_STEPS * block, losses=_losses(chance, level, 0.1), grad_norms=_norms(chance, bursting=0.8)
    )


def _leaking(chance: random.Random, block: int, level: float) -> Block:
    base = (8 + block % 8) * GB
    grown = base + int(chance.uniform(0.2, 0.4) * GB)
    return Block(first_step=BLOCK_STEPS * block, losses=_losses(chance, level, 0.1), gpu_bytes=(base, grown))


HARMS: Mapping[str, tuple[float, Seen]] = {
    "silently wrong": (FASTER, _wrong),
    "unstable": (FASTER, _unstable),
    "bursting": (FASTER, _bursting),
    "slower": (-0.05, _healthy),
    "leaking": (FASTER, _leaking),
}
"""Each with what it gains, and what is seen under it."""


def adopted_harms(harm: str, tunes: int, first: int = 0, course: str = "settled") -> int:
    """Return in how many of some tunes a harmful knob was adopted."""
    return sum(_tune(harm, course, seed)[0] for seed in range(first, first + tunes))


def _tune(harm: str, course: str, seed: int) -> tuple[bool, bool]:
    """Return whether the harmful knob was adopted, and whether the helpful one was."""
    gain, seen = HARMS[harm]
    chance = random.Random(seed)
    machine = Machine({"harm": gain, "help": 0.2, "nothing": 0.0}, 0.03, 0.3, chance)
    session = Session(queue=tuple(Arm(knob=name, value=True) for name in ("harm", "help", "nothing")))._next()
    blocks = 0
    while session.wanted is not None:
        blocks += 1
        look = seen if "harm" in session.wanted else _healthy
        session = session.after_block(
            machine.block(session.wanted), look(chance, blocks, COURSES[course](blocks)), MEMORY
        )
    adopted = {row.knob for row in session.adopted}
    return "harm" in adopted, "help" in adopted


def main() -> None:
    """Print the table."""
    tunes = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"{'losses':10} {'planted':16} {'tunes':>6} {'adopted':>8} {'the helpful knob beside it':>27}")
    for course in COURSES:
        total = 0
        for harm in HARMS:
            rows = [_tune(harm, course, seed) for seed in range(first, first + tunes)]
            total += sum(bad for bad, _ in rows)
            print(f"{course:10} {harm:16} {tunes:6} {sum(bad for bad, _ in rows):8} {sum(good for _, good in rows):27}")
        print(f"{course:10} adopted: {total} of {tunes * len(HARMS)}")


if __name__ == "__main__":
    main()
