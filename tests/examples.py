"""How many examples a property test takes: a fixed set by default, as many as LAWS_EXAMPLES says under `make laws`."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings

from tests.rigs.same_examples import draw_no_constants_of_modules

EXAMPLES = 100
"""Examples of each property test in an ordinary run: the same ones each time, on every machine."""
SAMPLES = 2000
"""Samples of each statistical law in an ordinary run; a sample costs less than an example of Hypothesis."""


def load_profile() -> None:
    """Load the profile `ci`, or `laws` where LAWS_EXAMPLES is set; without a deadline."""
    settings.register_profile(
        "ci",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    asked = _asked()
    settings.register_profile("laws", settings.get_profile("ci"), derandomize=False, max_examples=asked or EXAMPLES)
    settings.load_profile("ci" if asked is None else "laws")
    if asked is None:  # `make laws` looks for new examples: there each constant is a good one
        draw_no_constants_of_modules()


def at_least(examples: int) -> int:
    """Return the number of examples for a test that needs more than the profile `ci` gives."""
    return examples if _asked() is None else settings.get_profile("laws").max_examples


@dataclass(slots=True)
class Sampling:
    """The samples of one statistical law, each with a generator of its own, and those that contradicted it."""

    seed: int
    samples: int
    against: list[int] = field(default_factory=list)

    def holds(self, law: Callable[[random.Random], bool], error_rate: float) -> None:
        """Fail where `law` was false for more than `error_rate` of the samples; the seeds reproduce each of them."""
        self.against += [seed for seed in self._seeds() if not law(random.Random(seed))]
        assert len(self.against) <= error_rate * self.samples, f"{len(self.against)} of {self.samples}: {self.against}"

    def _seeds(self) -> Iterator[int]:
        return iter(range(self.seed, self.seed + self.samples))


def sampling() -> Sampling:
    """Return the samples that this process is to take: those after LAWS_SEED under `make laws`."""
    asked = _asked()
    return Sampling(seed=int(os.environ.get("LAWS_SEED", "0")), samples=SAMPLES if asked is None else asked)


def _asked() -> int | None:
    value = os.environ.get("LAWS_EXAMPLES")
    return None if value is None else max(1, int(value))
