"""Simulates tunes of a decoder whose joint arm holds a member that costs: what they adopt, and of what is possible.

    python tests/bench/tuner_decoder.py [TUNES]

The decoder has 0.6 billion weights under transformers' Trainer: four micro-batches an update, single precision, eager
attention, checkpointing. A step takes what its host needs to launch it, or what its GPU needs to compute it where that
is more: half precision by autocast launches more, and TF32 is as fast for a GPU that waits. The tune is the daemon's
own, of 300 s; only the training is simulated, as `simulated_tune` does it.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Mapping

from simulated_tune import SimulatedTune, Training

from supervisor.core.stats.median import median
from supervisor.core.tuning.knob import Facts

FACTS = Facts(
    device="cuda",
    cuda=True,
    processors=16,
    workers=0,
    pinned=True,
    loader_why_not="the batches are made in the training",
    channels_last_why_not="no weight has four dimensions",
    tf32=False,
    autocast=False,
    fused=False,
    attention="eager",
    checkpointing=True,
    micro_batches=4,
    convolves=False,
    compile_why_not="its inputs change their shapes",
    compiled=False,
)
LAUNCHED_S = 0.16
"""What the host needs for the layers of one pass forward and backward."""
CHECKPOINTED, EAGER, CAST = 1.3, 1.15, 1.05
"""Times that, where activations are computed twice, attention is eager, and inputs are cast."""
COMPUTED_S: Mapping[str, float] = {"single": 0.35, "tf32": 0.07, "bfloat16": 0.05}
"""What the GPU needs for all micro-batches of an update."""
UPDATED_S, FUSED_S = 0.03, 0.01
NOISES = ((0.01, 0.3), (0.03, 0.3))


def take_s(settings: Mapping[str, object]) -> float:
    """Return what a step takes."""
    doubled = 1.0 if "checkpointing" in settings else CHECKPOINTED
    passes = 1 if settings.get("micro_batch") == FACTS.micro_batches else 2 if "micro_batch" in settings else 4
    host_s = passes * LAUNCHED_S * doubled
    host_s *= (1.0 if "attention" in settings else EAGER) * (CAST if "autocast" in settings else 1.0)
    precision = "bfloat16" if "autocast" in settings else "tf32" if "tf32" in settings else "single"
    gpu_s = COMPUTED_S[precision] * doubled * (1.0 if "attention" in settings else EAGER)
    return max(host_s, gpu_s) + (FUSED_S if "fused_optimizer" in settings else UPDATED_S)


def list_possible() -> list[Mapping[str, object]]:
    """Return every combination of the knobs."""
    knobs: list[tuple[str, object]] = [("autocast", "bfloat16"), ("tf32", True), ("attention", "sdpa")]
    knobs += [("fused_optimizer", True), ("checkpointing", False), ("micro_batch", FACTS.micro_batches)]
    return [dict(chosen) for count in range(len(knobs) + 1) for chosen in itertools.combinations(knobs, count)]


def run(seed: int, noise: float, keep: float) -> tuple[SimulatedTune, Mapping[str, object]]:
    """Return one tune when it has ended, and what it has adopted."""
    training = Training(FACTS, take_s, noise, keep, random.Random(seed))
    tune = SimulatedTune(training, for_s=300.0)
    session = tune.tune()
    return tune, session.settings if session.confirmed is not None else {}


def main() -> None:
    """Print the table."""
    tunes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    best_s = min(map(take_s, list_possible()))
    for noise, keep in NOISES:
        rows = [run(seed, noise, keep) for seed in range(tunes)]
        shares = [best_s / take_s(adopted) for _, adopted in rows]
        steps, spent_s = ([value(tune.training) for tune, _ in rows] for value in (count_steps, count_s))
        share = f"{median(shares):.1%} ({min(shares):.1%}-{max(shares):.1%})"
        print(f"noise {noise:.0%} ({keep}): share of the best {share}")
        print(f"  steps {median(steps):.0f} (at most {max(steps):.0f}), {median(spent_s):.0f} s")
        found = Counter(", ".join(sorted(adopted)) for _, adopted in rows)
        for words, count in found.most_common():
            print(f"  {count / tunes:4.0%} {words}")


def count_steps(training: Training) -> float:
    """Return how many steps a training has made."""
    return training.step


def count_s(training: Training) -> float:
    """Return how long it has taken."""
    return training.now_s - training.began_s


if __name__ == "__main__":
    main()
