"""The daemon's own tune of a training that is none: no clock, no process and no file.

Batches come in order from workers that each have `prefetch` ahead, an exchange of workers delivers first what the old
ones have begun, an order with arithmetic that was not proven takes a while, and a step takes what its settings take,
with lognormal noise of which the next step keeps a part; one in a hundred takes 2 to 6 times as long. Or its noise is
that of recorded steps, of which pieces are played one after the other.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.control import types
from supervisor.core.events import AgentEvent
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.tuning import compare
from supervisor.core.tuning.bottleneck import Traced
from supervisor.core.tuning.knob import PREFETCH, Facts, choose_knobs
from supervisor.core.tuning.session import Session, begin_session
from supervisor.core.tuning.stock import read_sample
from supervisor.daemon.tunes.before import Before
from supervisor.daemon.tunes.blocks import HostMemory, Used
from supervisor.daemon.tunes.step_reader import StepReader
from supervisor.daemon.tunes.tune import Tune
from supervisor.sources.attempt.agent_log import AgentFact

SAMPLES = 32
EPOCH_STEPS = 32
REPLAYED_S = 1.0
"""What an order takes whose arithmetic the agent has to prove first."""
FORKED_S = 0.3
"""What it takes to begin new workers, and these to begin."""
CAPTURED_STEPS = 2
"""That the agent follows before it proves arithmetic."""
ANSWERED_STEPS = 2
"""Between the end of a block and the settings of the next one."""
TRACED_STEPS, COMPUTED_STEPS = 5, 12
"""Of a trace; the second where it shows what a GPU computes."""
READ_S = 1.5
"""What it takes to read a trace; meanwhile no step is made."""
PIECE_STEPS = 60
"""The mean length of a piece of recorded steps."""
MEMORY = HostMemory(total_bytes=64 << 30, available_bytes=32 << 30)
COUNTED_STEPS = 8
"""After which the agent counts a loader's batches once more."""


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

    def count_batches(self, now_s: float) -> dict[str, object]:
        """Return what the agent reports of its batches."""
        ready = sum(ended_s <= now_s for ended_s in self._ends_s[self._drawn :])
        counts = {"begun": self._begun, "ready": ready, "delivered": self._drawn}
        return {"iterator": id(self), "workers": self.count, "ahead": self.count * self.prefetch, **counts}

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
        if not self.count:
            return now_s  # it is made in the step
        ready_s = max(now_s, self._ends_s[self._drawn])
        self._drawn += 1
        if more:
            self.begin(ready_s)
        return ready_s


@dataclass
class Training:
    """A training on a GPU whose steps wait for the batches of its workers."""

    facts: Facts
    take_s: Callable[[Mapping[str, object]], float]
    """What a step takes under settings that waits for no batch."""
    noise: float
    keep: float
    chance: random.Random
    batch_s: float = 0.4
    """What a worker takes for a batch."""
    crowding: float = 1.0
    """How many times as long where each processor has a worker."""
    played: Sequence[float] = ()
    """What recorded steps took, as times of their median: the noise, where there are any."""
    uneven: Callable[[Mapping[str, object]], float] = lambda _settings: 1.0
    """What of it there is under settings, as an exponent."""
    compute_s: Callable[[Mapping[str, object]], float] | None = None
    """What a GPU computes for a step under settings; None where no trace shows it."""
    began_s: float = 1000.0
    now_s: float = 1000.0
    step: int = 0
    held: dict[str, object] = field(default_factory=dict)
    proven: set[str] = field(default_factory=lambda: {_name_arithmetic({})})
    loaders: list[Workers] = field(default_factory=list)
    _state: float = 0.0
    _place: int = 0
    _left: int = 0
    """Of the piece of recorded steps that is played."""

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
        self.now_s = ready_s + self.take_s(self.held) * (self._play() if self.played else self._make_noise())
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

    def _make_noise(self) -> float:
        """Return how many times as long as its settings make it the next step takes."""
        self._state = self.keep * self._state + math.sqrt(1 - self.keep**2) * self.chance.gauss(0, self.noise)
        hiccup = self.chance.uniform(2, 6) if self.chance.random() < 0.01 else 1.0
        return math.exp(self._state) * hiccup

    def _play(self) -> float:
        """Return the same of recorded steps, pieces of which follow one another as they were made."""
        if not self._left:
            self._place = self.chance.randrange(len(self.played))
            self._left = 1 + int(self.chance.expovariate(1 / PIECE_STEPS))
        self._place, self._left = (self._place + 1) % len(self.played), self._left - 1
        return float(self.played[self._place] ** self.uneven(self.held))

    def _make_loader(self, settings: Mapping[str, object]) -> Workers:
        count = settings.get("workers", self.facts.workers)
        assert isinstance(count, int)
        processors = self.facts.processors or 1
        crowded = min(1.0, (count - 1) / max(1, processors - 1))
        shared = max(1.0, count / processors) * (1 + (self.crowding - 1) * crowded)
        loader = Workers(count, self.facts.prefetch or PREFETCH, self.batch_s * shared, self.chance, self.now_s)
        loader.begin(self.now_s)
        return loader


def _name_arithmetic(settings: Mapping[str, object]) -> str:
    return repr(sorted((name, value) for name, value in settings.items() if name != "workers"))


class SimulatedSteps(StepReader):
    """Steps of a training that makes one whenever it is read."""

    def __init__(self, training: Training, stocks: list[AgentFact]) -> None:
        """`stocks` gets what the agent would report of the loader's batches."""
        super().__init__(training, Path("/nonexistent"))
        self._training, self._stocks = training, stocks

    def read(self) -> tuple[StepRecord, ...]:
        """Return the next step."""
        self.last = self._training.make_step()
        loaders, step = self._training.loaders, self._training.step
        if len(loaders) == 1 and loaders[0].count and step % COUNTED_STEPS == 0:
            facts: dict[str, object] = {"step": step, **loaders[0].count_batches(self._training.now_s)}
            at = self._training.now()
            self._stocks.append(AgentFact(at=at, agent_event=AgentEvent.STOCK, pid=None, rank=None, facts=facts))
        return (self.last,)


class SimulatedTune(Tune):
    """The daemon's tune of a training that is none."""

    def __init__(self, training: Training, for_s: float = 150.0) -> None:
        """`training` is its clock as well."""
        given = types.TuneBody(for_s=for_s, may=["precision"])
        super().__init__(training, "simulated", Path("/nonexistent"), given, lambda: None, host_memory=lambda: MEMORY)
        self.training = training
        self.taken: Counter[str] = Counter()
        """The steps of each arm, by its words."""
        self._stocks: list[AgentFact] = []
        self._steps = SimulatedSteps(training, self._stocks)

    def tune(self) -> Session:
        """Return the tune when it has ended."""
        for _ in range(CAPTURED_STEPS + 1):
            self._steps.read()
        facts = self.training.facts
        diagnosed = self._diagnose(Before(), facts)
        knobs, left = choose_knobs(facts, may=("precision",), remedied=())
        session = begin_session(knobs, left, facts, self._gpu_times)
        session = session.having(compare.typical_s(diagnosed.times), diagnosed.seen)
        self.taken["diagnosis"] = self.training.step
        return self._run_session(session, facts)

    def _make_block(self, session: Session, facts: Facts) -> Session:
        first = self.training.step
        after = super()._make_block(session, facts)
        self.taken[session.tried] += self.training.step - first
        return after

    def _read_used(self) -> Used | None:
        processes = 1 + sum(loader.count for loader in self.training.loaders)
        used_s, now_s = self.training.count_used_s(), self.training.now_s
        return Used(used_s=used_s, at_s=now_s, processes=processes, workers_s=used_s - now_s)

    def _read_reports(self) -> tuple[AgentFact, ...]:
        for fact in self._stocks:
            sample = read_sample(fact.facts, fact.at.monotonic_s)
            self._switches = self._switches if sample is None else self._switches.after_sample(sample)
        self._stocks.clear()
        return ()

    def _trace(self, settings: Mapping[str, object]) -> Traced | None:
        began_s, compute_s = self.training.now_s, self.training.compute_s
        steps = TRACED_STEPS if compute_s is None else COMPUTED_STEPS
        for _ in range(steps):
            self._steps.read()
        if compute_s is None:
            return None
        span_s, computing_s = self.training.now_s - began_s, steps * compute_s(settings)
        self.training.now_s += READ_S
        return Traced(
            steps=steps,
            span_s=span_s,
            waited_s=0.0,
            starved_s=0.0,
            communication_s=0.0,
            computing_s=computing_s,
            matrix_s=computing_s,
            on_gpu=True,
        )

    def _order(self, settings: Mapping[str, object], *, facts: bool = False, traces: bool = False) -> Mapping[str, Any]:
        passed = ANSWERED_STEPS + (0 if self.training.is_proven(settings) else CAPTURED_STEPS)
        self._steps.passed = tuple(record for _ in range(passed) for record in self._steps.read())
        self.training.set(settings)
        self._held = dict(settings)
        return {"applied": dict(settings), "refused": {}}

    def _wait(self, settings: Mapping[str, object], *, facts: bool = False, traces: bool = False) -> None:
        return
