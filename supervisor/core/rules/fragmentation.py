"""Fragmentation: the allocator holds most of the GPU, much of that is unused, and allocations fail at the first try.

This precedes an out-of-memory error with memory free in pieces that are too small (two RX 7900 XT, after 35 to 50
batches). One sign alone is ambiguous: a retry happens in healthy trainings too, when a kernel's workspace does not fit,
and at the end of a step the memory that activations will need is unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

from supervisor.core.attempt.agent_reports import Allocation
from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.remedies import causes
from supervisor.core.units import GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """Within `window_s`: `min_retries` more retries, in two readings at least, on a GPU that is full all that time.

    Full: the allocator holds `taken_fraction` of it, `unused_fraction` of that unused. The state of the training is
    good, so a stop saves first. By default it warns: some trainings go on like this for days.
    """

    name: ClassVar[str] = "fragmentation"
    group: ClassVar[Group] = "memory"
    cause: ClassVar[str] = causes.FRAGMENTATION
    enabled: bool = True
    act: Act = False
    window_s: float = 300.0
    min_retries: int = 3
    taken_fraction: float = 0.8
    unused_fraction: float = 0.15

    def may_flag(self, history: History) -> bool:
        """Whether a rank had to retry allocations at all."""
        return not (history.over or history.train_ended) and any(
            readings[-1].retries - readings[0].retries >= self.min_retries
            for readings in history.reports.allocations.values()
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how many allocations of each rank, and on each of its GPUs, had to be retried lately."""
        held = history.reports.allocations
        why = history.why_not_stepping() or (None if held else "allocator statistics not reported by this training")
        if why is not None:
            return not_applicable("allocations that had to be retried", why)
        return tuple(
            self._measure_holder(history.reports.name_holder(holder), self._list_recent(history, readings))
            for holder, readings in held.items()
        )

    def _measure_holder(self, name: str, recent: Sequence[Allocation]) -> Gauge:
        what = f"retried allocations of {name} in {self.window_s:.0f} s"
        if not recent:
            return Gauge(what=what, not_watched="no recent allocator statistics")
        return Gauge(
            what=what,
            now=_count_retries(recent),
            limit=self.min_retries,
            lacks=self._find_lack(recent),
            severity=Severity.acting(act=self.act),
            observe=partial(_observe_retries, name, recent),
        )

    def _list_recent(self, history: History, readings: Iterable[Allocation]) -> list[Allocation]:
        return [allocation for allocation in readings if history.now.seconds_since(allocation.at) <= self.window_s]

    def _find_lack(self, recent: Sequence[Allocation]) -> str | None:
        """Return which sign of fragmentation is missing apart from the retries; None where all are there."""
        newest = recent[-1]
        if newest.total_bytes is None or newest.reserved_bytes < self.taken_fraction * newest.total_bytes:
            return f"{self.taken_fraction:.0%} of the GPU taken"
        if newest.unused_bytes < self.unused_fraction * newest.reserved_bytes:
            return f"{self.unused_fraction:.0%} of that unused"
        grew = sum(later.retries > earlier.retries for earlier, later in pairwise(recent))
        return None if grew >= 2 else "retries in two readings"


def _observe_retries(name: str, recent: Sequence[Allocation]) -> Observation:
    first, newest = recent[0], recent[-1]
    total_bytes = newest.total_bytes or newest.reserved_bytes
    pieces = newest.inactive_split_bytes
    split = "" if pieces is None else f", {pieces / GB:.2f} GB of it in pieces of blocks in use"
    tried, ooms = newest.retries - first.retries, newest.ooms - first.ooms
    failed = f", {ooms} failed" if ooms else ""
    return Observation(
        message=f"{name}: {tried} allocations in {newest.at.seconds_since(first.at):.0f} s had to be retried "
        f"after all cached memory was given back{failed}; the allocator holds "
        f"{newest.reserved_bytes / GB:.2f} of {total_bytes / GB:.2f} GB, "
        f"{newest.unused_bytes / GB:.2f} GB unused{split}",
        can_save=True,
        subject=name,
        diagnosis=PIECES,
    )


def _count_retries(recent: Sequence[Allocation]) -> int:
    return recent[-1].retries - recent[0].retries


PIECES = Diagnosis(
    ruled_out=(
        "not a full GPU alone: what is unused would do, were it in one piece",
        "not a leak: that is vram_leak's, by the memory in use",
    ),
    causes=(
        "inputs of ever new sizes leave holes that fit no later one [PyTorch docs, CUDA semantics: memory management]",
        "kernels' workspaces that come and go [pytorch/pytorch#175431: out of memory on ROCm with most of it free]",
    ),
    advice=(
        'env = { PYTORCH_HIP_ALLOC_CONF = "expandable_segments:True" } where torch and GPU support it, else '
        '"garbage_collection_threshold:0.8,max_split_size_mb:256"',
        "a smaller batch, one image size (rect=False, no multi_scale)",
        "act = true makes a planned restart of it: save, end, resume",
    ),
)
