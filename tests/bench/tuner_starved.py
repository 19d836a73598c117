"""Simulates tunes of a starved YOLO: where the steps of a tune go, and how often what is tried late is reached.

    python tests/bench/tuner_starved.py [TUNES]

One loader worker decodes, 16 processors could. The tune is the daemon's own; only the training is simulated: batches
come in order from workers that each have `prefetch` ahead, an exchange of workers delivers first what the old ones
have begun, an order with arithmetic that was not proven takes a while, and a step takes what its settings take, with
lognormal noise of which the next step keeps a part. No clock, no process and no file.
"""

# ruff: noqa: T201 - a benchmark prints; its random numbers are a simulation's

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.control import types
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.stats.median import median
from supervisor.core.tuning import compare
from supervisor.core.tuning.bottleneck import Shares
from supervisor.core.tuning.knob import Facts, choose_knobs
from supervisor.core.tuning.session import Session, begin_session
from supervisor.daemon.tunes.before import Before
from supervisor.daemon.tunes.blocks import Used
from supervisor.daemon.tunes.tune import Tune
from supervisor.sources.attempt.agent_log import AgentFact

STEPS_MAX = 800
"""Within which a tune of a starved YOLO has to have ended."""
GIVEN_UP = "too few to try and confirm it"
SAMPLES = 32
EPOCH_STEPS = 32
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
REPLAYED_S = 1.0
"""What an order takes whose arithmetic the agent has to prove first."""
FORKED_S = 0.3
"""What it takes to begin new workers, and these to begin."""
CAPTURED_STEPS = 2
"""That the agent follows before it proves arithmetic."""
TRACED_STEPS = 5
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


@dataclass
class Workers:
    """Processes that make batches in turn, each some ahead of what was drawn."""

    count: int
    prefetch: int
    batch_s: float
    chance: random.Random
    began_s: float
    used: list[tuple[float, float]] = field(default_factory=list)
    """From when to when each batch keeps a processor busy."""
    _begun: int = 0
    _drawn: int = 0
    _ends_s: list[float] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many batches were begun and not drawn."""
        return self._begun - self._drawn

    def begin(self, now_s: float) -> None:
        """Begin as many batches as may lie ahead."""
        while self.left < self.count * self.prefetch:
            free_s = self._ends_s[-self.count] if len(self._ends_s) >= self.count else self.began_s
            took_s = self.batch_s * math.exp(self.chance.gauss(0, 0.2))
            self._ends_s.append(max(now_s, free_s) + took_s)
            self.used.append((self._ends_s[-1] - took_s, self._ends_s[-1]))
            self._begun += 1

    def draw(self, now_s: float, *, more: bool) -> float:
        """Return when the next batch is there, in order; `more`: another one is begun in its place."""
        ready_s = max(now_s, self._ends_s[self._drawn])
        self._drawn += 1
        if more:
            self.begin(ready_s)
        return ready_s


@dataclass
class Training:
    """A training on a GPU whose steps wait for the batches of its workers."""

    gains: Mapping[str, float]
    noise: float
    keep: float
    chance: random.Random
    batch_s: float = 0.4
    """What a worker takes for a batch."""
    step_s: float = 0.071
    """What a step takes that waits for none, under the owner's settings."""
    now_s: float = 1000.0
    step: int = 0
    held: dict[str, object] = field(default_factory=dict)
    proven: set[str] = field(default_factory=lambda: {_name_arithmetic({})})
    loaders: list[Workers] = field(default_factory=list)
    _state: float = 0.0

    def __post_init__(self) -> None:
        """Begin with the owner's one worker."""
        self.loaders = [self._make_loader({})]

    def now(self) -> Moment:
        """Return the time of the training."""
        return Moment(self.now_s, self.now_s)

    def is_proven(self, settings: Mapping[str, object]) -> bool:
        """Whether such arithmetic held before."""
        return _name_arithmetic(settings) in self.proven

    def set(self, settings: Mapping[str, object]) -> None:
        """Put settings in force; that takes a while."""
        self.now_s += 0.0 if self.is_proven(settings) else REPLAYED_S
        self.proven.add(_name_arithmetic(settings))
        if settings.get("workers") != self.held.get("workers"):
            self.now_s += FORKED_S
            self.loaders.append(self._make_loader(settings))
        self.held = dict(settings)

    def count_used_s(self) -> float:
        """Return the processor time of the training and of its present workers."""
        now_s = self.now_s
        made = ((began, min(ended, now_s)) for loader in self.loaders for began, ended in loader.used)
        return now_s + sum(ended - began for began, ended in made if ended > began)

    def make_step(self) -> StepRecord:
        """Return the next step."""
        while len(self.loaders) > 1 and not self.loaders[0].left:
            del self.loaders[0]
        ready_s = self.loaders[0].draw(self.now_s, more=len(self.loaders) == 1)
        waited_s = ready_s - self.now_s
        self._state = self.keep * self._state + math.sqrt(1 - self.keep**2) * self.chance.gauss(0, self.noise)
        hiccup = self.chance.uniform(2, 6) if self.chance.random() < 0.01 else 1.0
        speed = math.prod(1 + self.gains.get(name, 0.0) for name in self.held)
        self.now_s = ready_s + self.step_s / speed * math.exp(self._state) * hiccup
        self.step += 1
        loss = 8 + 4 * math.exp(-self.step / 80) + self.chance.gauss(0, 0.1)
        return StepRecord(
            at=Moment(self.now_s, self.now_s),
            step=self.step,
            epoch=self.step // EPOCH_STEPS,
            loss=loss,
            data_wait_s=waited_s,
            samples=SAMPLES,
        )

    def _make_loader(self, settings: Mapping[str, object]) -> Workers:
        count = settings.get("workers", FACTS.workers)
        assert isinstance(count, int)
        busy = max(1.0, count / (FACTS.processors or 1))
        loader = Workers(count, FACTS.prefetch or 2, self.batch_s * busy, self.chance, self.now_s)
        loader.begin(self.now_s)
        return loader


def _name_arithmetic(settings: Mapping[str, object]) -> str:
    return repr(sorted((name, value) for name, value in settings.items() if name != "workers"))


class SimulatedTune(Tune):
    """The daemon's tune of a training that is none."""

    def __init__(self, training: Training) -> None:
        """`training` is its clock as well."""
        given = types.TuneBody(for_s=150.0, may=["precision"])
        super().__init__(training, "yolo", Path("/nonexistent"), given, lambda: None)
        self.training = training
        self.taken: Counter[str] = Counter()
        """The steps of each arm, by its words."""

    def tune(self) -> Session:
        """Return the tune when it has ended."""
        for _ in range(CAPTURED_STEPS + 1):
            self._read_steps()
        diagnosed = self._diagnose(Before(), FACTS)
        knobs, left = choose_knobs(FACTS, may=("precision",), remedied=())
        session = begin_session(knobs, left, FACTS).having(compare.median_s(diagnosed.times), diagnosed.seen)
        self.taken["diagnosis"] = self.training.step
        return self._run_session(session, FACTS)

    def _make_block(self, session: Session, facts: Facts) -> Session:
        first = self.training.step
        after = super()._make_block(session, facts)
        self.taken[session.tried] += self.training.step - first
        return after

    def _read_steps(self) -> tuple[StepRecord, ...]:
        self._last = self.training.make_step()
        return (self._last,)

    def _read_used(self) -> Used | None:
        processes = 1 + sum(loader.count for loader in self.training.loaders)
        return Used(used_s=self.training.count_used_s(), at_s=self.training.now_s, processes=processes)

    def _read_reports(self) -> tuple[AgentFact, ...]:
        return ()

    def _trace(self, settings: Mapping[str, object]) -> Shares:
        for _ in range(TRACED_STEPS):
            self._read_steps()
        return Shares()

    def _order(self, settings: Mapping[str, object], *, facts: bool = False, traces: bool = False) -> Mapping[str, Any]:
        for _ in range(1 if self.training.is_proven(settings) else 1 + CAPTURED_STEPS):
            self._read_steps()
        self.training.set(settings)
        self._held = dict(settings)
        return {"applied": dict(settings), "refused": {}}

    def _wait(self, settings: Mapping[str, object], *, facts: bool = False, traces: bool = False) -> None:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of a simulated tune."""

    steps: int
    taken: Mapping[str, int]
    adopted: frozenset[str]
    tried: frozenset[str]


def run(seed: int, noise: float, keep: float, gains: Mapping[str, float] = GAINS) -> Ended:
    """Return one tune when it has ended."""
    tune = SimulatedTune(Training(gains, noise, keep, random.Random(seed)))
    session = tune.tune()
    given_up = {row.knob for row in session.refused if row.why.endswith(GIVEN_UP)}
    names = {words.split(" ")[0] for words, steps in tune.taken.items() if steps}
    confirmed = session.settings if session.confirmed is not None else {}
    return Ended(
        steps=tune.training.step, taken=tune.taken, adopted=frozenset(confirmed), tried=frozenset(names - given_up)
    )


def main() -> None:
    """Print the table."""
    tunes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for noise, keep in NOISES:
        rows = [run(seed, noise, keep) for seed in range(tunes)]
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


if __name__ == "__main__":
    main()
