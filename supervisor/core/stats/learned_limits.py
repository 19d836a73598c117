"""Limits learned from how long things took when all was well; no single event is kept.

The durations are kept as a sketch of logarithmic buckets (DDSketch: Masson, Rim, Lee, VLDB 2019): any order statistic
to within ACCURACY of itself, in a few hundred integers, whether ten durations were seen or ten million. A limit is the
largest duration except the few that are spared, times a factor, within a floor and a cap. Because of the spared ones a
single outlier changes nothing, which would distort "slowest x 5" (NVRx). A pause that recurs every quarter of an hour
counts; the 99th percentile of ten thousand steps would not include it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.core.readings import Stage

ACCURACY = 0.05
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
SHORTEST_S = 0.001
LONGEST_S = 1e6
LARGEST_BUCKET = math.ceil(math.log(LONGEST_S) / _LOG_GAMMA)
FORGET_AFTER = 200_000
"""Durations after which every count is halved: three hours of 18 a second, then what was once rare is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How a limit is made of what was seen in one stage."""

    factor: float
    floor_s: float
    least: int
    """Durations that must have been seen; with fewer nothing is known."""
    spared: int
    """The longest ones, which do not count."""
    resting_floor_s: float | None = None
    """In place of `floor_s` where every process of the job rests: a machine under load makes slow, not idle."""


BOUNDS: Mapping[Stage, Bounds] = {
    Stage.STEP: Bounds(factor=4, floor_s=8, least=1000, spared=3),
    Stage.DATA_WAIT: Bounds(factor=4, floor_s=60, least=1000, spared=3, resting_floor_s=15),
    Stage.LOOP: Bounds(factor=8, floor_s=120, least=5, spared=1),
    Stage.VALIDATE: Bounds(factor=4, floor_s=120, least=3, spared=1, resting_floor_s=20),
    Stage.CHECKPOINT: Bounds(factor=8, floor_s=120, least=5, spared=1),
}
"""By stage. Floors are far above what a machine under load adds: a limit that is too short kills healthy trainings.

Setting up, warming up and compiling are not learned: their results are cached, and how long it took to find them in
the cache predicts nothing about a run without them.
"""


@dataclass(slots=True)
class Durations:
    """A sketch of how long one thing took."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def add(self, seconds: float) -> None:
        """Take in one duration; what is no duration is left out."""
        if not SHORTEST_S / 1000 <= seconds <= LONGEST_S:
            return
        bucket = math.ceil(math.log(max(seconds, SHORTEST_S)) / _LOG_GAMMA)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total += 1
        if self.total >= FORGET_AFTER:
            self.counts = {bucket: half for bucket, count in self.counts.items() if (half := count // 2)}
            self.total = sum(self.counts.values())

    def longest_but(self, spared: int) -> float | None:
        """Return the longest duration that is left when the `spared` longest are taken away; None where none is."""
        for bucket in sorted(self.counts, reverse=True):
            spared -= self.counts[bucket]
            if spared < 0:
                return 2 * _GAMMA**bucket / (_GAMMA + 1)
        return None


@dataclass(slots=True)
class Learned:
    """What was learned of one set-up: a job with its model, batch, image size, GPU and torch."""

    stages: dict[Stage, Durations] = field(default_factory=dict)

    def add(self, stage: Stage, seconds: float) -> None:
        """Take in how long something took in `stage`."""
        if stage in BOUNDS:
            self.stages.setdefault(stage, Durations()).add(seconds)

    def limit_s(self, stage: Stage | None, cap_s: float, *, resting: bool = False) -> float | None:
        """Return the learned limit of a stage, at most `cap_s`; None where too little was seen.

        With `resting` it is that for a job of which every process rests, None where the stage has none.
        """
        if stage is None or stage not in self.stages:
            return None
        bounds, seen = BOUNDS[stage], self.stages[stage]
        longest_s = seen.longest_but(bounds.spared) if seen.total >= bounds.least else None
        floor_s = bounds.resting_floor_s if resting else bounds.floor_s
        return None if longest_s is None or floor_s is None else min(cap_s, max(floor_s, bounds.factor * longest_s))

    def plain(self) -> dict[str, dict[str, int]]:
        """Return it as JSON can hold it."""
        return {
            stage.value: {str(bucket): count for bucket, count in seen.counts.items()}
            for stage, seen in self.stages.items()
        }

    @classmethod
    def of_plain(cls, plain: object) -> Learned:
        """Return what `plain` gave; whatever in it is not of that form is unknown."""
        learned = cls()
        for stage_name, counts in plain.items() if isinstance(plain, dict) else ():
            stage = next((bound for bound in BOUNDS if bound.value == stage_name), None)
            if stage is not None and isinstance(counts, dict):
                known = dict(_read_counts(counts.items()))
                learned.stages[stage] = Durations(counts=known, total=sum(known.values()))
        return learned


def _read_counts(pairs: Iterable[tuple[object, object]]) -> Iterable[tuple[int, int]]:
    for bucket, count in pairs:
        known = isinstance(bucket, str) and bucket.removeprefix("-").isdecimal() and len(bucket) < 6
        if known and isinstance(count, int) and 0 < count < FORGET_AFTER and abs(int(str(bucket))) <= LARGEST_BUCKET:
            yield int(str(bucket)), count


def setting_of(plan: Mapping[str, object], gpu: str | None) -> str:
    """Return the name of a set-up, from the plan that the agent reported; each set-up has limits of its own."""
    known = {name: plan.get(name) for name in ("framework", "model", "batch", "image_size", "device", "torch")}
    parts = [f"{name}={value}" for name, value in {**known, "gpu": gpu}.items() if value is not None]
    return " ".join(parts)[:300]
