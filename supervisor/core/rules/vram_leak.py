"""VRAM leak: the memory that tensors hold at a step's end rises hour after hour. It does not count what is only cached.

Where torch's allocator is told of, its `allocated` speaks, which a sound training holds steady; without it the card's
use does, whose steps upwards (a larger image, a new kernel's workspace) are no slope.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import running_out
from supervisor.core.stats.holds import FRESH_S
from supervisor.core.stats.trend import WINDOW_S, Slope, Trend
from supervisor.core.unseen import ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class VramLeak:
    """The slope over `window_s` is above 0 with 99.9 % confidence and the card would be full within `full_within_s`.

    In that time it must have risen by `min_rise_fraction` of the card. It tells by default: memory may level off.
    """

    name: ClassVar[str] = "vram_leak"
    group: ClassVar[Group] = "memory"
    cause: ClassVar[str] = causes.FRAGMENTATION
    enabled: bool = True
    act: Act = False
    window_s: float = field(default=3600.0, metadata={"between": WINDOW_S})
    full_within_s: float = 43200.0
    min_rise_fraction: float = 0.02

    def check(self, history: History) -> RedFlag | None:
        """Flag the first memory that leaks."""
        if history.over:
            return None
        for subject, trend, used, total in _memories(history):
            slope = trend.slope(self.window_s)
            if slope is None or slope.falls_short_of(self.min_rise_fraction * total) is not None:
                continue
            left_s = slope.left_s(total - used)
            if left_s is not None and left_s <= self.full_within_s:
                level = f"{used / 1e9:.2f} of {total / 1e9:.2f} GB are taken, full in {left_s / 3600:.1f} h"
                return self._flag(history, subject, slope, level)
        return None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return when each memory would be full at the rate at which it rises."""
        memories = () if history.over else tuple(_memories(history))
        if not memories:
            why = ENDED if history.over else "no reading of the memory in use"
            return unwatched(self.name, "memory that rises", why)
        return tuple(self._of_memory(*row) for row in memories)

    def _of_memory(self, subject: str, trend: Trend, used: float, total: float) -> Gauge:
        return running_out(
            Gauge(rule=self.name, what=f"time until {subject} is full, at the rate of {self.window_s:.0f} s"),
            trend.slope(self.window_s),
            total - used,
            within_s=self.full_within_s,
            least_rise=self.min_rise_fraction * total,
            severity=Severity.acting(act=self.act),
        )

    def _flag(self, history: History, subject: str, slope: Slope, level: str) -> RedFlag:
        per_hour, low, high = (value * 3600 / 1e6 for value in (slope.per_s, slope.low_per_s, slope.high_per_s))
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"{subject}: memory in use rises by {per_hour:.0f} MB/h (99.9 %: {low:.0f} to {high:.0f}), {level}",
            can_save=True,
            subject=subject,
            diagnosis=LEAK,
        )


def _memories(history: History) -> Iterator[tuple[str, Trend, float, float]]:
    """Yield (what, its trend, used bytes, total bytes) of each memory whose trend is known."""
    told = False
    for rank, readings in history.told.allocations.items():
        newest = readings[-1]
        if newest.total_bytes:
            told = True
            trend = history.told.allocated[rank]
            yield f"rank {rank}", trend, float(newest.reserved_bytes), float(newest.total_bytes)
    if told:
        return
    for gpu, readings_of_card in history.readings_by_gpu().items():
        card, last = history.cards.get(gpu), readings_of_card[-1]
        if card is None or history.now.seconds_since(last.at) > FRESH_S:
            continue
        if last.memory_used_bytes is not None and last.memory_total_bytes:
            yield gpu, card.memory, float(last.memory_used_bytes), float(last.memory_total_bytes)


LEAK = Diagnosis(
    ruled_out=(
        "not the allocator's cache: what each minute needs least is rising, not its peak",
        "not one large batch: the slope is the median over an hour",
    ),
    causes=(
        "losses or outputs kept with their graph, as `total += loss` instead of `loss.item()` [PyTorch docs, FAQ]",
        "a list of predictions or metrics that lives on the card and is never emptied [PyTorch docs, FAQ]",
        "kernels compiled for ever new shapes [PyTorch docs, torch.compile and dynamic shapes]",
    ),
    advice=(
        "torch.cuda.memory_snapshot() an hour apart names the lines that allocate",
        "until it is mended: a planned restart from a checkpoint before it is full, act = true does that",
    ),
)
