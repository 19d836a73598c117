"""What a block of steps was like: how long they took, what they waited for, what they kept busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.sanitize import without_secrets
from supervisor.core.tuning.compare import count_asked
from supervisor.core.tuning.guards import Block
from supervisor.core.tuning.loader import WAITING_WORTH, average_turns, find_cold_steps

DIAGNOSED_STEPS = 30
DIAGNOSED_STEPS_MIN, DIAGNOSED_S = 6, 3.0
"""Slow steps show in fewer what they wait for."""
WARNINGS_READ = 8
BLOCK_STEPS_MAX = 2000
"""Enough of a block whose steps take no time."""
LONG_WAIT = 0.5
"""Share of a step from which on it had no batch ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Steps made with the same settings: seconds a sample (or a step) each, and what else was seen."""

    times: tuple[float, ...]
    wait: float | None
    """The share of their time that waited for data."""
    seen: Block
    pace_s: float
    """The time of a step."""
    busy: float | None
    """How many processors the training and its workers kept busy."""
    batch_s: float | None = None
    """The processor time that workers took for the batch of a step."""
    is_of_turns: bool = False
    """Whether each of the times is the mean of a turn of all workers."""
    last_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The memory of the machine."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """The processor time that processes had taken at a time."""

    used_s: float
    at_s: float
    processes: int
    workers_s: float | None = None
    """What the processes other than the training's own have taken of that; None where it is not known."""


def read_host_memory() -> HostMemory:
    """Return the memory of the machine now."""
    read = psutil.virtual_memory()
    return HostMemory(total_bytes=int(read.total), available_bytes=int(read.available))


@dataclass(slots=True, kw_only=True)
class Counted:
    """The steps of a block under way that count."""

    is_enough: Callable[[tuple[float, ...]], bool]
    workers: int
    cold: int
    """How many times a first half may be left out that new workers made while they began."""
    is_switched: bool
    """Whether its first steps may have been asked for before a switch."""
    spans: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """The same for a sample, where it is known how many a step has."""
    records: list[StepRecord] = field(default_factory=list)
    was_cold: bool = False

    def add(self, record: StepRecord, span_s: float) -> None:
        """Count a step."""
        self.spans.append(span_s)
        self.times.append(span_s / record.samples if record.samples else span_s)
        self.records.append(record)

    def settle(self) -> None:
        """Leave out first steps that were not made at the pace of the others, once there are enough."""
        if self.is_switched and self.is_enough(tuple(self.spans)):
            self.is_switched = False
            self._leave_out(count_asked(self.spans))
        if self.cold and self.is_enough(tuple(self.spans)) and len(self.spans) >= 2 * self.workers:
            half = find_cold_steps(self.spans, self.workers)
            self._leave_out(half)
            self.cold = self.cold - 1 if half else 0
            self.was_cold = self.cold > 0  # what is left may be as well

    @property
    def waits(self) -> bool:
        """Whether steps wait for data, as far as it is known."""
        return waits(self.spans, self.records)

    @property
    def is_complete(self) -> bool:
        """Whether there are enough; where they wait, batches come in turns of all workers, and a whole one counts."""
        if len(self.spans) >= BLOCK_STEPS_MAX:
            return True
        is_turn = len(self.spans) >= self.workers or not self.waits
        return not self.was_cold and self.is_enough(tuple(self.spans)) and is_turn

    def _leave_out(self, first: int) -> None:
        self.spans, self.times, self.records = self.spans[first:], self.times[first:], self.records[first:]


@dataclass(slots=True, kw_only=True)
class LeadIn:
    """The first steps of a block, which do not count: their batches were asked for, or made, before it."""

    drop: int
    ahead: int
    """How many batches at most were made while the settings changed: up to the first that is waited for."""
    pace_s: float | None
    """The time of a step before, where steps waited: no more batches were made than the change took time for."""
    keeps_up: Callable[[], bool]
    """Whether workers have shown that they follow."""

    def takes(self, record: StepRecord, span_s: float) -> bool:
        """Whether the next step is one of them."""
        if self.pace_s is not None:
            self.ahead, self.pace_s = min(self.ahead, int(span_s / self.pace_s) + 1), None
        if self.drop > 0:
            self.drop -= 1
            return True
        if self.ahead > 0:
            is_paced = was_waited_for(record, span_s) or self.keeps_up()
            self.ahead = 0 if is_paced else self.ahead - 1
            return True
        return False


@dataclass(slots=True, kw_only=True)
class BlockUnderWay:
    """What is known of a block whose steps are being made."""

    before: StepRecord | None
    """The newest step that was read."""
    lead: LeadIn
    counted: Counted
    seen: list[StepRecord] = field(default_factory=list)
    """All its steps that could be timed."""
    began_bytes: int | None = None
    """What the training held when the first step of those that count was read."""
    began_used: Used | None = None
    made: int = 0
    """How many steps were made since then."""

    def summarize(self, seen: Block, ended_used: Used | None, last_step: int) -> Collected:
        """Return what the steps were like that count, once there are enough."""
        counted = self.counted
        is_of_turns = counted.waits and counted.workers > 1
        return Collected(
            times=average_turns(counted.times, counted.workers) if is_of_turns else tuple(counted.times),
            wait=find_wait_share(counted.spans, counted.records),
            seen=seen,
            pace_s=sum(counted.spans) / len(counted.spans),
            busy=count_busy(self.began_used, ended_used),
            batch_s=count_batch_s(self.began_used, ended_used, self.made),
            is_of_turns=is_of_turns,
            last_step=last_step,
        )


def read_rss_bytes(pid: int | None) -> int | None:
    """Return the memory of the process that makes the steps; None where it is not known."""
    try:
        return int(psutil.Process(pid).memory_info().rss) if pid is not None else None
    except psutil.Error:
        return None


def read_used(pid: int | None, now: Moment) -> Used | None:
    """Return the processor time that a training and its workers have taken; None where it is not known."""
    try:
        process = psutil.Process(pid) if pid is not None else None
        found = [] if process is None else [process.cpu_times(), *(row.cpu_times() for row in process.children())]
    except psutil.Error:
        return None
    if not found:
        return None
    own_s, *others_s = (row.user + row.system for row in found)
    workers_s = sum(others_s)
    return Used(used_s=own_s + workers_s, at_s=now.monotonic_s, processes=len(found), workers_s=workers_s)


def count_busy(began: Used | None, ended: Used | None) -> float | None:
    """Return how many processors were taken meanwhile; None where some of the processes changed."""
    if began is None or ended is None or began.processes != ended.processes or ended.at_s <= began.at_s:
        return None
    return (ended.used_s - began.used_s) / (ended.at_s - began.at_s)


def count_batch_s(began: Used | None, ended: Used | None, steps: int) -> float | None:
    """Return the processor time that workers took for each of so many steps; None where it is not known."""
    if count_busy(began, ended) is None or began is None or ended is None or not steps:
        return None
    if began.workers_s is None or ended.workers_s is None or ended.workers_s <= began.workers_s:
        return None
    return (ended.workers_s - began.workers_s) / steps


def is_diagnosed(spans: tuple[float, ...]) -> bool:
    """Whether so many steps show what they wait for."""
    return len(spans) >= DIAGNOSED_STEPS or (len(spans) >= DIAGNOSED_STEPS_MIN and sum(spans) >= DIAGNOSED_S)


def was_waited_for(record: StepRecord, span_s: float) -> bool:
    """Whether most of a step was spent waiting for its batch: there was none ahead."""
    return record.data_wait_s is not None and record.data_wait_s >= LONG_WAIT * span_s


def find_wait_share(spans: list[float], counted: list[StepRecord]) -> float | None:
    """Return the share of steps in which they waited for data; None where not all of them tell it."""
    known = [record.data_wait_s for record in counted if record.data_wait_s is not None]
    return min(1.0, sum(known) / sum(spans)) if len(known) == len(spans) and sum(spans) > 0 else None


def waits(spans: list[float], counted: list[StepRecord]) -> bool:
    """Whether steps wait for data as long as a change of the loader is worth, or it is not known."""
    share = find_wait_share(spans, counted)
    return share is None or share >= WAITING_WORTH


def see_steps(
    seen: Sequence[StepRecord],
    counted: Sequence[StepRecord],
    available_bytes: int,
    rss_bytes: tuple[int, int] | None = None,
) -> Block:
    """Return what was seen besides times: losses of all steps `seen`, memory of those after it has settled.

    `available_bytes` is that of the machine now; `rss_bytes` what the training held when the block began and ended.
    """
    return Block(
        first_step=seen[0].step if seen else 0,
        losses=tuple(record.loss for record in seen if record.loss is not None),
        grad_norms=tuple(record.grad_norm for record in seen if record.grad_norm is not None),
        gpu_bytes=tuple(record.gpu_memory_bytes for record in counted if record.gpu_memory_bytes is not None),
        rss_bytes=rss_bytes,
        available_bytes=available_bytes,
    )


def find_span_s(before: StepRecord | None, record: StepRecord) -> float | None:
    """Return how long a step took, None where something else lay between it and the one before."""
    if before is None or record.step != before.step + 1 or record.epoch != before.epoch:
        return None
    span_s = record.at.seconds_since(before.at)
    return span_s if span_s > 0 else None


def time_samples(before: StepRecord | None, records: Sequence[StepRecord]) -> tuple[float, ...]:
    """Return what a sample (or a step) took in each of the steps after one, without those that cannot be timed."""
    earlier = (before, *records)
    spans = zip(records, map(find_span_s, earlier, records), strict=True)
    return tuple(span_s / (record.samples or 1) for record, span_s in spans if span_s is not None)


def list_warnings(value: object) -> list[str]:
    """Return the first warnings that an agent reports; none where they are no list."""
    return [without_secrets(str(item)) for item in value[:WARNINGS_READ]] if isinstance(value, list) else []
