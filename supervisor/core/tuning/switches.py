"""What the blocks of a tune have shown of each of its settings, and which steps after a switch to others do not count.

Batches that workers drew ahead before a switch are at another pace than the settings after it would make them: those
of an exchanged loader, and those that lie ready for the present one. How many there are is counted exactly, and they
are left out where they may hide that steps would wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.core.tuning.compare import BLOCK_STEPS, DROPPED_STEPS, FIRST_DROPPED_STEPS
from supervisor.core.tuning.knob import Facts
from supervisor.core.tuning.loader import STARVED, WAITING_WORTH, count_ahead, count_switch_steps, loader_of, workers_of
from supervisor.core.tuning.stock import Stock, StockSample

SPARE = 0.7
"""Share of the processors of its workers up to which a loader is taken to follow a faster training for now.

The last comparison of a tune uses up what lies ready, and proves it.
"""
MOSTLY = 0.5
"""Share of a step from which on it is mostly spent waiting."""

Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the newest block of some settings has shown; None is unknown."""

    pace_s: float
    """The mean time of a step."""
    wait: float | None = None
    """The share of steps that waited for data."""
    busy: float | None = None
    """How many processors the training and its workers kept busy."""
    batch_s: float | None = None
    """The processor time that workers took for the batch of a step."""
    is_run_out: bool = True
    """Whether batches that lay ready were used up before a block of them."""

    @property
    def waits_for_none(self) -> bool:
        """Whether its batches were there whenever a step wanted one."""
        return self.wait is not None and self.wait < WAITING_WORTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Which steps after a switch do not count."""

    drop: int = 0
    """The first ones: what was begun before, and what the training allocates and looks for."""
    ahead: int = 0
    """At most so many further ones, up to the first that waits: batches that lay ready."""
    is_exchange: bool = False
    """Whether workers are exchanged."""
    is_known: bool = False
    """Whether a block of the settings has shown that they wait for no batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What is known of the settings of one tune, by what they are."""

    facts: Facts
    shown: Mapping[str, Shown] = field(default_factory=dict)
    taken: Mapping[tuple[object, ...], int] = field(default_factory=dict)
    """How many steps the newest block took with all that was not counted, by the kind of switch before it."""
    batches_s: tuple[float, ...] = ()
    """The processor time that workers took for a batch, in each block that shows it."""
    stocks: Mapping[tuple[int, int], Stock] = field(default_factory=dict)
    """What was counted of the batches of loaders, by their workers and how many these draw ahead."""

    def after_block(self, settings: Settings, shown: Shown) -> Switches:
        """Return what is known after a block; batches once used up need not be again.

        What a batch takes is known of steps that waited long for theirs: one was made for each, and none lay ready.
        """
        known_s = () if shown.batch_s is None or (shown.wait or 0.0) < STARVED else (shown.batch_s,)
        before = self.shown.get(name_settings(settings))
        run_out = shown.is_run_out or (before is not None and before.is_run_out)
        known = {**self.shown, name_settings(settings): replace(shown, is_run_out=run_out)}
        return replace(self, shown=known, batches_s=(*self.batches_s, *known_s))

    def after_switch(self, kind: tuple[object, ...], steps: int) -> Switches:
        """Return what is known after a switch and a block that took so many steps."""
        return replace(self, taken={**self.taken, kind: steps})

    def after_sample(self, sample: StockSample) -> Switches:
        """Return what is known after a loader's batches were counted."""
        kind = (sample.workers, sample.ahead)
        return replace(self, stocks={**self.stocks, kind: self.stocks.get(kind, Stock()).after(sample)})

    def is_being_counted(self, settings: Settings) -> bool:
        """Whether it is about to be known how fast the workers of a loader make batches: all of them are at work."""
        stock = self._find_stock(settings)
        return stock is not None and stock.step_s is None and stock.newest is not None and stock.newest.is_at_work

    def keeps_up(self, settings: Settings, since_step: int) -> bool:
        """Whether the workers of a loader have shown that they follow the steps made since one."""
        stock = self._find_stock(settings)
        return stock is not None and stock.keeps_up(since_step)

    def find_made_s(self, settings: Settings) -> float | None:
        """Return the time in which the workers of a loader make the batches of a step, None where it is not known."""
        stock = self._find_stock(settings)
        return None if stock is None else stock.step_s

    def find(self, settings: Settings) -> Shown | None:
        """Return what a block of some settings has shown, None where none was made.

        What steps will wait once nothing lies ready is known before they do, where a loader's batches were counted.
        """
        shown, made_s = self.shown.get(name_settings(settings)), self.find_made_s(settings)
        later = 0.0 if shown is None or made_s is None else 1 - shown.pace_s / made_s
        if shown is None or later < WAITING_WORTH:
            return shown
        return replace(shown, wait=max(later, shown.wait or 0.0))

    def is_run_out(self, settings: Settings) -> bool:
        """Whether a block was made of them after all batches that lay ready were used up."""
        shown = self.find(settings)
        return shown is not None and shown.is_run_out

    def has_ended_wait(self, base: Settings, arm: Settings) -> bool:
        """Whether steps spent most of their time waiting before a change, and no longer so with no batch ready."""
        before, after = self.find(base), self.find(arm)
        if before is None or after is None or before.wait is None or after.wait is None or not after.is_run_out:
            return False
        return before.wait >= MOSTLY and after.wait * after.pace_s <= before.wait * before.pace_s / 2

    def has_spare(self, settings: Settings, busy: float | None) -> bool:
        """Whether workers that keep as many processors busy would follow a training that is faster."""
        most = min(workers_of(settings, self.facts), self.facts.processors or 0)
        return busy is not None and busy <= SPARE * most

    def find_slowdown(self, settings: Settings, pace_s: float) -> float:
        """Return how many times longer than `pace_s` a step takes once what lies ready is used up; 1: no longer.

        Workers that make batches nearly as fast as steps take them have a stock that lasts hundreds of steps: no block
        shows its end. Where it was not counted how fast they make them, they need their processor time at least.
        """
        made_s = self.find_made_s(settings)
        if made_s is not None:
            return max(1.0, made_s / pace_s)
        workers = min(workers_of(settings, self.facts), self.facts.processors or 0)
        if not self.batches_s or not workers:
            return 1.0
        return max(1.0, math.fsum(self.batches_s) / len(self.batches_s) / workers / pace_s)

    def plan(self, held: Settings, wanted: Settings, *, proves: bool) -> Switch:
        """Return what does not count after a switch from `held` to `wanted`.

        `proves`: nothing that lies ready may be in the block, unless one without it has shown that it does not matter.
        """
        shown = self.find(wanted)
        is_known = shown is not None and shown.waits_for_none
        if held == wanted and not (proves and is_known and not self.is_run_out(wanted)):
            return Switch(is_known=is_known)
        exchanged = count_switch_steps(held, wanted, self.facts)
        # What is allocated and looked for at first is so while the old batches of an exchanged loader come.
        settling = DROPPED_STEPS if shown is not None and not exchanged else FIRST_DROPPED_STEPS
        drop = max(settling, exchanged)
        ahead = self._count_ready(held, wanted, drop, exchanged)
        if is_known and not exchanged and (self.is_run_out(wanted) or not proves):
            ahead = 0  # more of them ready makes no step faster
        return Switch(drop=drop, ahead=ahead, is_exchange=exchanged > 0, is_known=is_known)

    def count_steps(self, held: Settings, wanted: Settings) -> int:
        """Return how many steps there are to the end of a block: as many as the newest of its kind took."""
        taken = self.taken.get(self.kind_of(held, wanted))
        if taken is not None:
            return taken
        block = max(BLOCK_STEPS, workers_of(wanted, self.facts))
        switch = self.plan(held, wanted, proves=False)
        return block + switch.drop + switch.ahead

    def count_reserve(self, base: Settings, arm: Settings) -> int:
        """Return how many batches lie ready that the last comparison has to use up, where blocks so far need not.

        It begins with the arm's settings where these are adopted, and else with those before.
        """
        return max(self._count_unused(arm, base), self._count_unused(base, arm))

    def _count_unused(self, settings: Settings, other: Settings) -> int:
        """Return how many steps use up what lies ready under settings, or show that workers follow."""
        shown = self.find(settings) or self.find(other)
        if shown is None or not shown.waits_for_none or self.is_run_out(settings):
            return 0
        if shown.is_run_out and not self.has_spare(other, shown.busy):
            return 0
        ahead, stock = count_ahead(settings, self.facts), self._find_stock(settings)
        return ahead if stock is None else int(min(ahead, stock.count_shown()))

    def kind_of(self, held: Settings, wanted: Settings, *, proves: bool = False) -> tuple[object, ...]:
        """Return what decides how many steps pass uncounted between two blocks.

        The loaders, whether all else stays, whether a block of what is wanted was made, and whether batches that lie
        ready are used up first, 64 of a YOLO: the blocks after it take no such time.
        """
        uses_up = self.plan(held, wanted, proves=proves).ahead > 0
        return (loader_of(held), loader_of(wanted), held == wanted, self.find(wanted) is not None, uses_up)

    def _find_stock(self, settings: Settings) -> Stock | None:
        return self.stocks.get((workers_of(settings, self.facts), count_ahead(settings, self.facts)))

    def _count_ready(self, held: Settings, wanted: Settings, drop: int, exchanged: int) -> int:
        """Return how many batches lie ready after the dropped steps that were begun before them.

        Those of an exchanged loader come first, and are dropped; of its successor's the first ones are as well.
        """
        own = drop - (count_ahead(held, self.facts) if exchanged else 0)
        return max(0, count_ahead(wanted, self.facts) - max(0, own))


def name_settings(settings: Settings) -> str:
    """Return what stands for settings where they are looked up."""
    return repr(sorted(settings.items()))
