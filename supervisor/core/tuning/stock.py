"""How fast the workers of a loader make batches, by the stock of them that they draw ahead.

A step that waits for no batch says nothing of that: sixteen workers draw 32 batches ahead, and where they make seven
while ten are taken, a hundred steps wait for none. So what they make is counted: what was delivered, and what lies
ready. It is as much as they can make while each of them has a batch under way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from supervisor.core.foreign_values import STEP_MAX, as_int

WORKERS_MAX = 4096
MADE_TURNS = 2
"""Turns of all workers after which their rate is known: those that begin together end together."""
KEPT_TURNS = 8
"""Turns from which on all that was counted before counts half: other settings leave them other processors."""
FOLLOWED = 2
"""Times that a batch takes, after which so many are under way as steps of that pace ask for."""
COUNTED_STEPS = 8
"""So many steps lie between two samples that an agent reports, at most."""
IDLE_FROM = 0.75
"""Batches under way for each worker, up to which some of them have none to make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StockSample:
    """What a loader had made and begun after a step; counts are of one iterator."""

    at_s: float
    """On the monotonic clock."""
    step: int
    iterator: int
    """Another number for each new one."""
    workers: int
    ahead: int
    """Batches that they may have begun and nothing has taken."""
    delivered: int
    ready: int
    begun: int

    @property
    def made(self) -> int:
        """Batches that were made."""
        return self.delivered + self.ready

    @property
    def under_way(self) -> int:
        """Batches that workers are making or are about to."""
        return self.begun - self.made

    @property
    def is_at_work(self) -> bool:
        """Whether each worker has a batch to make."""
        return self.under_way >= self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What was counted while all workers of a loader had a batch to make."""

    newest: StockSample | None = None
    made: float = 0.0
    taken: float = 0.0
    steps: float = 0.0
    """In which so many were taken: a step takes several of a loader, or one serves several steps."""
    span_s: float = 0.0

    def after(self, sample: StockSample) -> Stock:
        """Return what is known after a sample; nothing is counted from one iterator to another."""
        before = self.newest
        follows = before is not None and before.iterator == sample.iterator and before.step < sample.step
        if before is None or not follows or not (before.is_at_work and sample.is_at_work):
            return replace(self, newest=sample)
        kept = 0.5 if self.made >= KEPT_TURNS * sample.workers else 1.0
        return Stock(
            newest=sample,
            made=kept * self.made + sample.made - before.made,
            taken=kept * self.taken + sample.delivered - before.delivered,
            steps=kept * self.steps + sample.step - before.step,
            span_s=kept * self.span_s + sample.at_s - before.at_s,
        )

    def keeps_up(self, since_step: int) -> bool:
        """Whether workers have shown that they follow the steps since one, and are idle meanwhile.

        By Little's law a batch takes as many steps as there are batches under way, where one is taken in each: after
        some of these times as many are under way as will be.
        """
        newest = self.newest
        if newest is None or newest.under_way > IDLE_FROM * newest.workers:
            return False
        return newest.step - since_step >= FOLLOWED * max(1, newest.under_way)

    def count_shown(self) -> float:
        """Return in how many steps workers that are idle now show that they follow; infinite where none are."""
        newest = self.newest
        if newest is None or newest.under_way > IDLE_FROM * newest.workers:
            return math.inf
        return FOLLOWED * max(1, newest.under_way) + COUNTED_STEPS

    @property
    def step_s(self) -> float | None:
        """The time in which the batches of a step are made, None while it is not known: no workers were short of it."""
        if self.newest is None or self.made < MADE_TURNS * self.newest.workers or not self.steps:
            return None
        return self.span_s / self.made * self.taken / self.steps


def read_sample(facts: Mapping[str, object], at_s: float) -> StockSample | None:
    """Return a sample as the agent has reported it, None where it is none."""
    names = ("iterator", "delivered", "ready", "begun")
    counts = {name: count for name in names if (count := as_int(facts.get(name))) is not None}
    step = as_int(facts.get("step"), maximum=STEP_MAX)
    workers, ahead = (as_int(facts.get(name), 1, WORKERS_MAX) for name in ("workers", "ahead"))
    if len(counts) < len(names) or step is None or workers is None or ahead is None:
        return None
    return StockSample(at_s=at_s, step=step, workers=workers, ahead=ahead, **counts)
