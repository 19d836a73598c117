"""VRAM leak: the memory that tensors hold at a step's end rises hour after hour; cached memory does not count.

Where torch's allocator is reported, its `allocated` is used, which a healthy training holds steady; without it the
GPU's memory use is, whose single rises (a larger image, a new kernel's workspace) are no slope.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History
from supervisor.core.remedies import causes
from supervisor.core.rules.bounds import is_running_out, measure_running_out
from supervisor.core.stats.holds import FRESH_S
from supervisor.core.stats.trend import WINDOW_S, Slope, Trend
from supervisor.core.units import GB, HOUR_S, MB


@dataclass(frozen=True, slots=True, kw_only=True)
class VramLeak:
    """The slope over `window_s` is above 0 with 99.9 % confidence and the GPU would be full within `full_within_s`.

    In that time it must have risen by `min_rise_fraction` of the GPU. It warns by default: memory may level off.
    """

    name: ClassVar[str] = "vram_leak"
    group: ClassVar[Group] = "memory"
    cause: ClassVar[str] = causes.FRAGMENTATION
    enabled: bool = True
    act: Act = False
    window_s: float = field(default=3600.0, metadata={"between": WINDOW_S})
    full_within_s: float = 43200.0
    min_rise_fraction: float = 0.02

    def may_flag(self, history: History) -> bool:
        """Whether a memory would be full within the limit."""
        return not history.over and any(
            is_running_out(trend.slope(self.window_s), total - used, self.full_within_s)
            for _, trend, used, total in _list_memories(history)
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return when each memory would be full at the rate at which it rises."""
        memories = () if history.over else tuple(_list_memories(history))
        if not memories:
            why = ATTEMPT_ENDED if history.over else "no reading of the memory in use"
            return not_applicable("memory that rises", why)
        return tuple(self._measure_memory(*row) for row in memories)

    def _measure_memory(self, subject: str, trend: Trend, used: float, total: float) -> Gauge:
        slope = trend.slope(self.window_s)
        named = Gauge(
            what=f"time until {subject} is full, at the rate of {self.window_s:.0f} s",
            severity=Severity.acting(act=self.act),
            observe=None if slope is None else partial(_observe_leak, subject, slope, used, total),
        )
        least_rise = self.min_rise_fraction * total
        return measure_running_out(named, slope, total - used, within_s=self.full_within_s, least_rise=least_rise)


def _observe_leak(subject: str, slope: Slope, used: float, total: float) -> Observation:
    per_hour, low, high = (value * HOUR_S / MB for value in (slope.per_s, slope.low_per_s, slope.high_per_s))
    left_h = (slope.left_s(total - used) or 0.0) / HOUR_S
    return Observation(
        message=f"{subject}: memory in use rises by {per_hour:.0f} MB/h (99.9 %: {low:.0f} to {high:.0f}), "
        f"{used / GB:.2f} of {total / GB:.2f} GB are taken, full in {left_h:.1f} h",
        can_save=True,
        subject=subject,
        diagnosis=LEAK,
    )


def _list_memories(history: History) -> Iterator[tuple[str, Trend, float, float]]:
    """Yield (what, its trend, used bytes, total bytes) of each memory whose trend is known."""
    reported = False
    for holder, readings in history.reports.allocations.items():
        newest = readings[-1]
        if newest.total_bytes:
            reported = True
            trend = history.reports.allocated[holder]
            yield history.reports.name_holder(holder), trend, float(newest.reserved_bytes), float(newest.total_bytes)
    if reported:
        return
    for gpu, readings_of_gpu in history.readings_by_gpu().items():
        facts, last = history.gpu_facts.get(gpu), readings_of_gpu[-1]
        if facts is None or history.now.seconds_since(last.at) > FRESH_S:
            continue
        if last.memory_used_bytes is not None and last.memory_total_bytes:
            yield gpu, facts.memory, float(last.memory_used_bytes), float(last.memory_total_bytes)


LEAK = Diagnosis(
    ruled_out=(
        "not the allocator's cache: what each minute needs least is rising, not its peak",
        "not one large batch: the slope is the median over an hour",
    ),
    causes=(
        "losses or outputs kept with their graph, as `total += loss` instead of `loss.item()` [PyTorch docs, FAQ]",
        "a list of predictions or metrics that lives on the GPU and is never emptied [PyTorch docs, FAQ]",
        "kernels compiled for ever new shapes [PyTorch docs, torch.compile and dynamic shapes]",
    ),
    advice=(
        "torch.cuda.memory_snapshot() an hour apart names the lines that allocate",
        "until it is fixed: a planned restart from a checkpoint before it is full, act = true does that",
    ),
)
