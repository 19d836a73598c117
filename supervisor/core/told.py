"""What the agent tells beside steps: allocator, loaders, precision, epochs; what is unreadable is left out."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.trend import Trend

ALLOCATIONS_KEPT = 600
EPOCHS_KEPT = 512
METRICS_KEPT = 64
LOADERS_KEPT = 64
RANKS_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What torch's caching allocator held on one card at a step's end."""

    at: Moment
    reserved_bytes: int
    allocated_bytes: int
    inactive_split_bytes: int | None = None
    """Free pieces of blocks that are in use in part: they cannot go back to the card."""
    retries: int = 0
    """Allocations that only succeeded once all that was cached had been given back; counted from the start."""
    ooms: int = 0
    total_bytes: int | None = None
    """The card's memory, or the share of it that the program allows itself."""

    @property
    def unused_bytes(self) -> int:
        """Taken from the card and not in use."""
        return max(0, self.reserved_bytes - self.allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """One epoch that is over, with what validation said."""

    at: Moment
    epoch: int
    """Counted from 0."""
    fitness: float | None = None
    """The framework's own figure of merit; NaN where it could not be computed."""
    metrics: dict[str, float] = field(default_factory=dict)
    train_loss: float | None = None
    val_loss: float | None = None

    @property
    def merit(self) -> float | None:
        """mAP50-95 where the framework tells it, or else its own figure of merit; None where neither is a number."""
        named = next((value for name, value in self.metrics.items() if "map50-95" in name.lower()), self.fitness)
        return named if named is not None and math.isfinite(named) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """The worker processes of one iteration over a loader."""

    at: Moment
    parent: int | None
    pids: tuple[int, ...]
    finite: bool = True
    """Whether a worker never ends before the loader does: not so where each worker has its own end of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What arithmetic was asked for and what is used."""

    at: Moment
    asked: str
    used: str
    why: str = ""
    device: str | None = None
    """Type of the device that it is about (`cpu`, `cuda`)."""


@dataclass(slots=True)
class Told:
    """The words of one attempt, newest last, bounded."""

    allocations: dict[int, deque[Allocation]] = field(default_factory=dict)
    """By rank."""
    allocated: dict[int, Trend] = field(default_factory=dict)
    epochs: deque[EpochEnd] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))
    loaders: dict[tuple[int | None, int], Loader] = field(default_factory=dict)
    """By parent and the agent's number of the iteration; those that were shut down are gone."""
    workers: int | None = None
    """Of the newest loader that the training draws from; None where nobody said."""
    precision: Precision | None = None
    rank_pids: dict[int, int] = field(default_factory=dict)
    """Processes that claimed the recorders of ranks."""
    start_epoch: int | None = None

    def add(self, said: ev.AgentSaid) -> None:
        """Take in a word."""
        match said.word:
            case ev.Word.ALLOCATOR:
                self._allocator(said)
            case ev.Word.EPOCH_END:
                self._epoch(said)
            case ev.Word.WORKERS:
                self._workers(said)
            case ev.Word.PRECISION:
                asked, used = said.facts.get("asked"), said.facts.get("used")
                if isinstance(asked, str) and isinstance(used, str):
                    self.precision = _precision(said, asked, used)
            case ev.Word.CLAIMED:
                if said.rank is not None and said.pid is not None and said.rank < RANKS_KEPT:
                    self.rank_pids[said.rank] = said.pid
            case ev.Word.PLAN:
                self.start_epoch = whole(said.facts.get("start_epoch"))
            case _:
                pass

    def _allocator(self, said: ev.AgentSaid) -> None:
        facts, rank = said.facts, said.rank or 0
        reserved, allocated = whole(facts.get("reserved_bytes")), whole(facts.get("allocated_bytes"))
        if reserved is None or allocated is None or (rank not in self.allocations and rank >= RANKS_KEPT):
            return
        reading = Allocation(
            at=said.at,
            reserved_bytes=reserved,
            allocated_bytes=allocated,
            inactive_split_bytes=whole(facts.get("inactive_split_bytes")),
            retries=whole(facts.get("retries")) or 0,
            ooms=whole(facts.get("ooms")) or 0,
            total_bytes=whole(facts.get("total_bytes")),
        )
        self.allocations.setdefault(rank, deque(maxlen=ALLOCATIONS_KEPT)).append(reading)
        self.allocated.setdefault(rank, Trend()).add(said.at, float(allocated))

    def _epoch(self, said: ev.AgentSaid) -> None:
        epoch, metrics = whole(said.facts.get("epoch")), said.facts.get("metrics")
        if epoch is None:
            return
        numbers = {str(name): number(one) for name, one in metrics.items()} if isinstance(metrics, dict) else {}
        known = {name: one for name, one in numbers.items() if one is not None}
        self.epochs.append(
            EpochEnd(
                at=said.at,
                epoch=epoch,
                fitness=_figure(said.facts, "fitness"),
                metrics=dict(list(known.items())[:METRICS_KEPT]),
                train_loss=_figure(said.facts, "train_loss"),
                val_loss=_figure(said.facts, "val_loss"),
            )
        )

    def _workers(self, said: ev.AgentSaid) -> None:
        loader, pids = whole(said.facts.get("loader")), said.facts.get("pids")
        if loader is None or not isinstance(pids, list):
            return
        key = (said.pid, loader)
        known = tuple(one for one in map(whole, pids) if one is not None)
        if said.facts.get("training") is True:
            self.workers = len(known)
        if not known or said.facts.get("ended") is True:
            self.loaders.pop(key, None)
        elif len(self.loaders) < LOADERS_KEPT:
            finite = said.facts.get("iterable") is not True
            self.loaders[key] = Loader(at=said.at, parent=said.pid, pids=known, finite=finite)


def _precision(said: ev.AgentSaid, asked: str, used: str) -> Precision:
    why, device = said.facts.get("why"), said.facts.get("device")
    return Precision(
        at=said.at,
        asked=asked,
        used=used,
        why=why if isinstance(why, str) else "",
        device=device if isinstance(device, str) else None,
    )


def whole(value: object) -> int | None:
    """Return a whole number out of a foreign file, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """Return a number out of a foreign file, None for anything else; one too large for a float is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _figure(facts: dict[str, object], name: str) -> float | None:
    """Return a figure of an epoch: JSON has no NaN, so one that the agent had and could not write stands as null."""
    return math.nan if name in facts and facts[name] is None else number(facts.get(name))
