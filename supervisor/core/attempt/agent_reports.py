"""Agent reports besides steps: allocator, loaders, precision, epochs, snapshots; invalid values are omitted."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from supervisor.core import events as ev
from supervisor.core.foreign_values import BYTES_MAX, EPOCH_MAX, PID_MAX, as_dict, as_float, as_int, as_list, as_message
from supervisor.core.moments import Moment
from supervisor.core.stats.trend import Trend

ALLOCATIONS_KEPT = 600
EPOCHS_KEPT = 512
METRICS_KEPT = 64
LOADERS_KEPT = 64
RANKS_KEPT = 64
GPU_INDEX_MAX = 63
HOLDERS_KEPT = 128
TRAINERS_KEPT = 256
INTERPRETERS_KEPT = 4096
ERROR_CHARACTERS = 500
EVERY_MAX_S = 1e6
"""Between two snapshots; a longer interval is ignored as invalid."""
STATUS_MAX = 255


class Holder(NamedTuple):
    """The memory of one GPU that a process holds: a model may be split over several."""

    rank: int
    gpu: int | None = None
    """As torch counts them in that process; None where it was not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What torch's caching allocator held on one GPU at the end of a step."""

    at: Moment
    reserved_bytes: int
    allocated_bytes: int
    inactive_split_bytes: int | None = None
    """Free pieces of blocks that are in use in part: they cannot be returned to the GPU."""
    retries: int = 0
    """Allocations that only succeeded once the cache had been released; counted from the start."""
    ooms: int = 0
    total_bytes: int | None = None
    """The GPU's memory, or the share of it that the program allows itself."""

    @property
    def unused_bytes(self) -> int:
        """Reserved on the GPU and not in use."""
        return max(0, self.reserved_bytes - self.allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """One completed epoch with its validation results."""

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
        """mAP50-95 where the framework reports it, or else its own figure of merit; None where neither is a number."""
        named = next((value for name, value in self.metrics.items() if "map50-95" in name.lower()), self.fitness)
        return named if named is not None and math.isfinite(named) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """The worker processes of one iteration over a loader."""

    at: Moment
    parent: int | None
    pids: tuple[int, ...]
    finite: bool = True
    """Whether a worker never ends before the loader does: false where each worker reads its own part of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """One process that makes steps of its own."""

    at: Moment
    """When it was first reported."""
    ended: bool = False
    """Whether it came to its end by itself, or its own program ended it."""
    error: str = ""
    """The exception that ended it, or what its launcher has reaped."""
    restarts: bool = False
    """Whether its launcher starts it again where it may."""
    ended_at: Moment | None = None
    status: int | None = None
    """The status that it ended with by itself; None where its interpreter does not know it."""
    left_at: Moment | None = None
    """When its program came to its end while it still lived, which ends it."""


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
class Saving:
    """What the agent reports of the snapshots that it takes."""

    every_s: float | None = None
    """The interval as it was reported last; None where none was."""
    since: Moment | None = None
    """When the agent began to take snapshots by itself; None where it did not."""
    at: Moment | None = None
    """When the newest snapshot was saved."""
    failed_at: Moment | None = None
    """When saving failed first since then; None where the newest attempt to save succeeded."""
    error: str = ""
    """Why the newest attempt failed."""
    asked_error: str = ""
    """Why the newest save that was asked for failed; empty where it succeeded or none was asked for."""

    def add(self, report: ev.AgentReported) -> None:
        """Add a report about saving."""
        facts, snapshot = report.facts, report.facts.get("kind") == "snapshot"
        self.every_s = as_float(facts.get("every_s"), 0.0, EVERY_MAX_S) or self.every_s
        match report.agent_event:
            case ev.AgentEvent.SNAPSHOTS:
                self.since = self.since or report.at
            case ev.AgentEvent.CHECKPOINT_SAVED:
                self.asked_error = ""
                if snapshot:
                    self.at, self.failed_at, self.error = report.at, None, ""
            case ev.AgentEvent.SAVE_FAILED if snapshot:
                self.failed_at, self.error = self.failed_at or report.at, _read_error(facts.get("error"))
            case ev.AgentEvent.SAVE_FAILED:
                self.asked_error = _read_error(facts.get("error"))
            case _:
                pass


@dataclass(slots=True)
class AgentReports:
    """The reports of one attempt, newest last, bounded."""

    allocations: dict[Holder, deque[Allocation]] = field(default_factory=dict)
    allocated: dict[Holder, Trend] = field(default_factory=dict)
    epochs: deque[EpochEnd] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))
    loaders: dict[tuple[int | None, int], Loader] = field(default_factory=dict)
    """By parent and the agent's number of the iteration; those that were shut down are removed."""
    workers: int | None = None
    """Of the newest loader that the training draws from; None where not reported."""
    precision: Precision | None = None
    rank_pids: dict[int, int] = field(default_factory=dict)
    """Processes that claimed the recorders of ranks."""
    trainers: dict[int, Trainer] = field(default_factory=dict)
    """The processes that make steps, by pid; those that ended stay."""
    interpreters: set[int] = field(default_factory=set)
    """The processes in which an agent has begun, whether they train or not; those that ended stay."""
    begun_at: Moment | None = None
    """When the newest interpreter of rank 0, or of no rank, began: of the training, its launcher or another program."""
    start_epoch: int | None = None
    saving: Saving = field(default_factory=Saving)

    def add(self, report: ev.AgentReported) -> None:
        """Add a report."""
        match report.agent_event:
            case ev.AgentEvent.ALLOCATOR:
                self._add_allocation(report)
            case ev.AgentEvent.EPOCH_END:
                self._add_epoch(report)
            case ev.AgentEvent.WORKERS:
                self._add_loader(report)
            case ev.AgentEvent.PRECISION:
                asked, used = report.facts.get("asked"), report.facts.get("used")
                if isinstance(asked, str) and isinstance(used, str):
                    self.precision = _read_precision(report, asked, used)
            case ev.AgentEvent.PROGRAM_ENDS:
                self._add_program_end(report)
            case ev.AgentEvent.ALIVE | ev.AgentEvent.CLAIMED | ev.AgentEvent.TRAINS:
                self._add_process(report)
            case ev.AgentEvent.SNAPSHOTS | ev.AgentEvent.CHECKPOINT_SAVED | ev.AgentEvent.SAVE_FAILED:
                self.saving.add(report)
            case ev.AgentEvent.PLAN:
                self.start_epoch = as_int(report.facts.get("start_epoch"), maximum=EPOCH_MAX)
            case _:
                pass

    def name_holder(self, holder: Holder) -> str:
        """Return "rank 1", or "rank 1, GPU 0" where the rank holds memory on several."""
        alone = sum(other.rank == holder.rank for other in self.allocations) == 1
        return f"rank {holder.rank}" if alone or holder.gpu is None else f"rank {holder.rank}, GPU {holder.gpu}"

    def find_next_start(self, pids: Container[int]) -> Moment | None:
        """Return when the newest interpreter began, where the process of rank 0 is not among `pids`, those alive.

        None while it is there, and where none has begun since it claimed the recorder.
        """
        maker = self.rank_pids.get(0)
        trainer = self.trainers.get(maker) if maker is not None else None
        if trainer is None or maker in pids or self.begun_at is None:
            return None
        return self.begun_at if self.begun_at.seconds_since(trainer.at) > 0 else None

    def _add_allocation(self, report: ev.AgentReported) -> None:
        facts, holder = (
            report.facts,
            Holder(report.rank or 0, as_int(report.facts.get("gpu_index"), maximum=GPU_INDEX_MAX)),
        )
        reserved, allocated = _read_bytes(facts, "reserved_bytes"), _read_bytes(facts, "allocated_bytes")
        is_full = holder.rank >= RANKS_KEPT or len(self.allocations) >= HOLDERS_KEPT
        if reserved is None or allocated is None or (holder not in self.allocations and is_full):
            return
        reading = Allocation(
            at=report.at,
            reserved_bytes=reserved,
            allocated_bytes=allocated,
            inactive_split_bytes=_read_bytes(facts, "inactive_split_bytes"),
            retries=as_int(facts.get("retries")) or 0,
            ooms=as_int(facts.get("ooms")) or 0,
            total_bytes=_read_bytes(facts, "total_bytes"),
        )
        self.allocations.setdefault(holder, deque(maxlen=ALLOCATIONS_KEPT)).append(reading)
        self.allocated.setdefault(holder, Trend()).add(report.at, float(allocated))

    def _add_epoch(self, report: ev.AgentReported) -> None:
        epoch, metrics = as_int(report.facts.get("epoch"), maximum=EPOCH_MAX), as_dict(report.facts.get("metrics"))
        if epoch is None:
            return
        numbers = {name: as_float(item) for name, item in metrics.items()}
        known = {name: value for name, value in numbers.items() if value is not None}
        self.epochs.append(
            EpochEnd(
                at=report.at,
                epoch=epoch,
                fitness=_read_figure(report.facts, "fitness"),
                metrics=dict(list(known.items())[:METRICS_KEPT]),
                train_loss=_read_figure(report.facts, "train_loss"),
                val_loss=_read_figure(report.facts, "val_loss"),
            )
        )

    def _add_loader(self, report: ev.AgentReported) -> None:
        loader, pids = as_int(report.facts.get("loader")), report.facts.get("pids")
        if loader is None or not isinstance(pids, list):
            return
        key = (report.pid, loader)
        known = tuple(pid for item in as_list(pids) if (pid := as_int(item, 1, PID_MAX)) is not None)
        if report.facts.get("training") is True:
            self.workers = len(known)
        if not known or report.facts.get("ended") is True:
            self.loaders.pop(key, None)
        elif len(self.loaders) < LOADERS_KEPT:
            finite = report.facts.get("iterable") is not True
            self.loaders[key] = Loader(at=report.at, parent=report.pid, pids=known, finite=finite)

    def _add_process(self, report: ev.AgentReported) -> None:
        """Take in that an agent has begun in a process, or that one trains."""
        if report.agent_event is not ev.AgentEvent.ALIVE:
            self._add_trainer(report)
            return
        if report.rank in (None, 0):
            self.begun_at = report.at
        if report.pid is not None and len(self.interpreters) < INTERPRETERS_KEPT:
            self.interpreters.add(report.pid)

    def _add_program_end(self, report: ev.AgentReported) -> None:
        pid = as_int(report.facts.get("of"), 1, PID_MAX)
        if pid is not None and pid in self.trainers:
            self.trainers[pid] = replace(self.trainers[pid], left_at=report.at)

    def _add_trainer(self, report: ev.AgentReported) -> None:
        of_rank = report.agent_event is ev.AgentEvent.CLAIMED and report.rank is not None and report.rank < RANKS_KEPT
        if of_rank and report.rank is not None and report.pid is not None:
            self.rank_pids[report.rank] = report.pid
        pid = as_int(report.facts.get("of"), 1, PID_MAX) or report.pid
        known = self.trainers.get(pid) if pid is not None else None
        ended = report.facts.get("ended") is True
        if pid is None or (known is None and (ended or len(self.trainers) >= TRAINERS_KEPT)):
            return
        if known is None or (known.ended and not ended):  # the number of one that ended may be used again
            self.trainers[pid] = Trainer(at=report.at)
        elif ended and not known.ended:
            error, restarts = as_message(report.facts.get("error"), ERROR_CHARACTERS), report.facts.get("restarts")
            self.trainers[pid] = replace(
                known,
                ended=True,
                error=error or "",
                restarts=restarts is True,
                ended_at=report.at,
                status=as_int(report.facts.get("status"), maximum=STATUS_MAX),
            )
        elif ended:  # an exit handler may leave with a status of its own after that
            status = as_int(report.facts.get("status"), maximum=STATUS_MAX)
            self.trainers[pid] = replace(known, status=known.status if status is None else status)


def _read_precision(report: ev.AgentReported, asked: str, used: str) -> Precision:
    why, device = report.facts.get("why"), report.facts.get("device")
    return Precision(
        at=report.at,
        asked=asked,
        used=used,
        why=why if isinstance(why, str) else "",
        device=device if isinstance(device, str) else None,
    )


def _read_bytes(facts: dict[str, object], name: str) -> int | None:
    return as_int(facts.get(name), maximum=BYTES_MAX)


def _read_error(value: object) -> str:
    return as_message(value, ERROR_CHARACTERS) or "no reason was reported"


def _read_figure(facts: dict[str, object], name: str) -> float | None:
    """Return a figure of an epoch: JSON has no NaN, so a NaN of the agent is written as null."""
    value = as_float(facts.get(name))
    return math.nan if value is None and name in facts else value
