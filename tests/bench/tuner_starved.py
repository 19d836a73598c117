"""Simulates tunes of a starved YOLO: where the steps of a tune go, and how often what is tried late is reached.

    python tests/bench/tuner_starved.py [TUNES [SEED]]

One loader worker decodes, 16 processors could. Each row is one arm of a tune, or what leaves an adopted value out. The
last rows are of loaders that 16 workers make barely faster than the GPU: how many times as fast as it then holds a tune
has reported what it adopted.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from simulated_tune import SAMPLES, SimulatedTune, Training

from supervisor.core.stats.median import median
from supervisor.core.tuning.knob import Facts

STEPS_MAX = 800
"""Within which a tune of a starved YOLO has to have ended."""
STEP_S = 0.071
"""What a step takes that waits for none, under the owner's settings."""
GIVEN_UP = "too few to try and confirm it"
FACTS = Facts(
    device="cuda",
    cuda=True,
    processors=16,
    workers=1,
    prefetch=4,
    pinned=True,
    channels_last=False,
    tf32=False,
    autocast=False,
    fused=False,
    convolves=True,
    cudnn_benchmark=False,
    compiled=False,
)
GAINS: Mapping[str, float] = {
    "tf32": 0.15,
    "channels_last": 0.20,
    "autocast": -0.05,
    "cudnn_benchmark": 0.0,
    "fused_optimizer": 0.0,
    "compile": -0.05,
}
NOISES = ((0.03, 0.3), (0.10, 0.3), (0.10, 0.8))
"""Standard deviation of a step's log time, and how much of it the next step keeps."""


BATCHES_S = (0.8, 0.9, 1.0, 1.1, 1.4)
"""What a worker takes for a batch where 16 are made at once; a step takes 0.051 s with all that gains."""
CROWDINGS = (1.0, 3.0)
"""How many times as long a batch takes where every processor makes one: by 3.3 times on a machine with an H200."""
HELD_STEPS = 1500
OVERSTATED = 1.11
"""Times what holds, up to which noise explains what two pairs of blocks show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of a simulated tune."""

    steps: int
    taken: Mapping[str, int]
    adopted: frozenset[str]
    tried: frozenset[str]


def take_step_s(settings: Mapping[str, object], gains: Mapping[str, float] = GAINS) -> float:
    """Return what a step takes under settings that waits for none."""
    return STEP_S / math.prod(1 + gains.get(name, 0.0) for name in settings)


def run(seed: int, noise: float, keep: float, gains: Mapping[str, float] = GAINS) -> Ended:
    """Return one tune when it has ended."""

    def take_s(settings: Mapping[str, object]) -> float:
        return take_step_s(settings, gains)

    tune = SimulatedTune(Training(FACTS, take_s, noise, keep, random.Random(seed)))
    session = tune.tune()
    given_up = {row.knob for row in session.refused if GIVEN_UP in row.why}
    names = {word.split(" ")[0] for words, steps in tune.taken.items() if steps for word in words.split(", ")}
    confirmed = session.settings if session.confirmed is not None else {}
    return Ended(
        steps=tune.training.step, taken=tune.taken, adopted=frozenset(confirmed), tried=frozenset(names - given_up)
    )


def find_overstated(batch_s: float, seed: int, noise: float, keep: float, crowding: float = 1.0) -> float | None:
    """Return how many times as fast as it holds a tune has reported what it adopted; None where it adopted nothing."""
    train = partial(Training, FACTS, take_step_s, noise, keep, batch_s=batch_s, crowding=crowding)
    session = SimulatedTune(train(chance=random.Random(seed))).tune()
    if session.confirmed is None or session.after_s is None:
        return None
    held = train(chance=random.Random(-1 - seed))
    held.set(session.settings)
    for _ in range(HELD_STEPS // 4):
        held.make_step()
    began_s = held.now_s
    for _ in range(HELD_STEPS):
        held.make_step()
    return (held.now_s - began_s) / HELD_STEPS / SAMPLES / session.after_s


def print_overstated(tunes: int, first: int) -> None:
    """Print a row for each loader."""
    noise, keep = NOISES[1]
    for batch_s, crowding in itertools.product(BATCHES_S, CROWDINGS):
        alone_s = batch_s / crowding
        made = [find_overstated(alone_s, seed, noise, keep, crowding) for seed in range(first, first + tunes)]
        found = sorted(times for times in made if times is not None)
        over = sum(times > OVERSTATED for times in found)
        print(
            f"a batch in {batch_s / 16 * 1000:.0f} ms, {crowding:.0f} times as long as one worker's share, "
            f"noise {noise:.0%} ({keep}): {len(found)} of {tunes} adopt; "
            f"reported {median(found):.3f} times what holds ({found[0]:.2f}-{found[-1]:.2f}), {over} above {OVERSTATED}"
        )


def main() -> None:
    """Print the table."""
    tunes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for noise, keep in NOISES:
        rows = [run(seed, noise, keep) for seed in range(first, first + tunes)]
        in_time = sum("channels_last" in row.tried and row.steps <= STEPS_MAX for row in rows)
        found = sum("channels_last" in row.adopted for row in rows)
        print(
            f"noise {noise:.0%} ({keep}): channels_last tried within {STEPS_MAX} steps {in_time / tunes:.0%}, "
            f"adopted {found / tunes:.0%}; steps {median([row.steps for row in rows]):.0f} "
            f"(at most {max(row.steps for row in rows)})"
        )
        for words in dict.fromkeys(words for row in rows for words in row.taken):
            made = [row.taken[words] for row in rows if row.taken.get(words)]
            adopted = sum(words.split(" ")[0] in row.adopted for row in rows)
            if made:
                share = f"in {len(made) / tunes:4.0%}, adopted in {adopted / tunes:4.0%}"
                print(f"  {words:24} {share}: {median(made):5.0f} steps (at most {max(made)})")
    print_overstated(tunes, first)


if __name__ == "__main__":
    main()
