"""Simulates tunes of a ResNet-50 whose steps are as uneven as recorded ones: what share of the best they reach.

    python tests/bench/tuner_recorded.py [TUNES [SEED]]

The noise is that of steps made by a ResNet-50 and a YOLO under sixteen workers on an H200 (recorded_steps.json, in
milliseconds), both held back by their host most of the time: a step differs from the next by a fifth. One loader worker
decodes at first. channels_last gains 5 % of a step; autocast and torch.compile have the GPU compute less, and cost more
of the host than that; the other two change nothing. A trace of some steps shows what the GPU computes for one.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from simulated_tune import SimulatedTune, Training
from tuner_starved import FACTS

from supervisor.core.stats.median import median

STEPS_MAX = 800
ENOUGH = 0.98
RECORDED = Path(__file__).with_name("recorded_steps.json")
RESNET = replace(FACTS, processors=16)
STEP_S, COMPUTE_S = 0.077, 0.075
EVEN = 0.1
"""What is left of the noise where the GPU holds steps back: in single precision."""
BATCH_S, CROWDING = 0.23, 2.0
FOR_S = 150.0
COMPUTE_NOISE = 0.01
"""By which a trace's time of the GPU differs from that of the next one."""
CASES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "channels_last gains 5 %": {"channels_last": (0.05, 0.12)},
    "channels_last gains 3 %": {"channels_last": (0.03, 0.12)},
    "channels_last costs 3 %": {"channels_last": (-0.03, 0.12)},
    "channels_last costs 5 %": {"channels_last": (-0.05, 0.12)},
    "nothing gains": {},
    "fused_optimizer gains 10 %": {"fused_optimizer": (0.10, 0.0)},
}
"""What settings gain of a step, and of what the GPU computes for one."""
GAINS: Mapping[str, tuple[float, float]] = {
    "tf32": (0.7, 1.3),
    "autocast": (-0.08, 0.2),
    "compile": (-0.05, 0.1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of a simulated tune."""

    share: float
    steps: int
    adopted: frozenset[str]
    tried: frozenset[str]


def run(gains: Mapping[str, tuple[float, float]], played: tuple[float, ...], seed: int, *, traced: bool) -> Ended:
    """Return one tune when it has ended."""
    chance = random.Random(seed)

    def speed(settings: Mapping[str, object], part: int) -> float:
        return math.prod(1 + gains.get(name, (0.0, 0.0))[part] for name in settings)

    def compute_s(settings: Mapping[str, object]) -> float:
        return COMPUTE_S / speed(settings, 1) * math.exp(chance.gauss(0, COMPUTE_NOISE))

    tune = SimulatedTune(
        Training(
            RESNET,
            lambda settings: STEP_S / speed(settings, 0),
            0.0,
            0.0,
            chance,
            batch_s=BATCH_S,
            crowding=CROWDING,
            played=played,
            uneven=lambda settings: 1.0 if "tf32" in settings else EVEN,
            compute_s=compute_s if traced else None,
        ),
        for_s=FOR_S,
    )
    session = tune.tune()
    held = session.settings if session.confirmed is not None else {}
    best = math.prod(1 + max(0.0, gain) for gain, _ in gains.values())
    share = speed(held, 0) / best if "workers" in held else 0.0
    names = {word.split(" ")[0] for words, steps in tune.taken.items() if steps for word in words.split(", ")}
    return Ended(share=share, steps=tune.training.step, adopted=frozenset(held), tried=frozenset(names))


def read_played(kind: str) -> tuple[float, ...]:
    """Return what recorded steps took, as times of their median."""
    times = json.loads(RECORDED.read_text())[kind]
    return tuple(time / median(times) for time in times)


def main() -> None:
    """Print the table."""
    tunes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for kind in json.loads(RECORDED.read_text()):
        played = read_played(kind)
        for traced in (True, False):
            print(f"noise of the {kind}, {'GPU time traced' if traced else 'no GPU time'}, {tunes} tunes a row")
            for name, gains in CASES.items():
                rows = [run({**GAINS, **gains}, played, seed, traced=traced) for seed in range(first, first + tunes)]
                shares = sorted(row.share for row in rows)
                enough = sum(row.share >= ENOUGH and row.steps <= STEPS_MAX for row in rows)
                adopted = Counter(knob for row in rows for knob in row.adopted)
                tried = Counter(knob for row in rows for knob in row.tried)
                knobs = ("tf32", "channels_last", "autocast", "cudnn_benchmark", "fused_optimizer", "compile")
                found = ", ".join(f"{knob} {adopted[knob]}/{tried[knob]}" for knob in knobs)
                print(
                    f"  {name:26} {ENOUGH:.0%} of the best in {enough / tunes:4.0%}; share {median(shares):.1%} "
                    f"({shares[0]:.1%}-{shares[-1]:.1%}); steps {median([row.steps for row in rows]):.0f} "
                    f"(at most {max(row.steps for row in rows)}); adopted of tried: {found}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
