"""Data starved: the GPU waits for batches. It only warns: a starved training still makes steps and is not a hang.

A ResNet-50 on an A10G at 0.19 batches/s with the GPU at 0-10 % looks like a hang if only the GPU is watched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, beyond, not_applicable
from supervisor.core.history import History
from supervisor.core.stats.median import median
from supervisor.core.stats.pace import Stretch, covered_s, step_s_of, wait_share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStarved:
    """`wait_fraction` of the newest `window_s` of stepping went into waiting for data, every GPU at `busy_percent`.

    It needs two signals, the agent's and the GPUs'; without either there is no flag.
    """

    name: ClassVar[str] = "data_starved"
    group: ClassVar[Group] = "pace"
    enabled: bool = True
    wait_fraction: float = 0.5
    window_s: float = 300.0
    busy_percent: float = 30.0

    def may_flag(self, history: History) -> bool:
        """Whether so much of the time goes into waiting for data."""
        if history.over or history.train_ended:
            return False
        recent = history.pace.recent(self.window_s, history.now)
        share = wait_share_of(recent) if recent else None
        return share is not None and beyond(100 * share, 100 * self.wait_fraction)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how much of its time goes into waiting for data."""
        what = "time that goes into waiting for data, the GPUs idle"
        recent = history.pace.recent(self.window_s, history.now)
        share = wait_share_of(recent) if recent else None
        why = history.why_not_stepping() or (None if recent else "it has not stepped for long enough")
        busy_percent = self._find_busy_percent(history)
        if why is not None or share is None or busy_percent is None:
            missing = "the time spent waiting for data is not reported" if share is None else "no reading of its GPUs"
            return not_applicable(what, why or missing)
        idle = busy_percent <= self.busy_percent
        return (
            Gauge(
                what=what,
                unit="%",
                now=100 * share,
                limit=100 * self.wait_fraction,
                lacks=None if idle else f"GPUs at {self.busy_percent:g} % or less: {busy_percent:.0f} % now",
                observe=partial(_observe_wait, history, recent, share, busy_percent),
            ),
        )

    def _find_busy_percent(self, history: History) -> float | None:
        """Return the use of the busiest GPU, the median over the time looked at; None where any is silent."""
        uses = []
        for readings in history.readings_by_gpu().values():
            values = [
                reading.gpu_busy_percent
                for reading in readings
                if reading.gpu_busy_percent is not None
                and math.isfinite(reading.gpu_busy_percent)
                and history.now.seconds_since(reading.at) <= self.window_s
            ]
            if not values:
                return None
            uses.append(median(values))
        return max(uses, default=None)


def _observe_wait(history: History, recent: Sequence[Stretch], share: float, busy_percent: float) -> Observation:
    return Observation(
        message=f"{share:.0%} of {covered_s(recent):.0f} s of stepping went into waiting for data, "
        f"the GPU at {busy_percent:.0f} %, {1 / step_s_of(recent):.3g} steps/s",
        can_save=True,
        diagnosis=_diagnose(history, sum(stretch.steps for stretch in recent)),
    )


def _diagnose(history: History, steps: int) -> Diagnosis:
    causes, advice = [], []
    workers = history.reports.workers
    if workers in (0, None):
        causes.append("no loader workers: the training process reads and decodes by itself [PyTorch docs, DataLoader]")
        advice.append("workers=4 and more (on gfx10 with ROCm 5 they may hang: then workers=0 with cache=ram or disk)")
    else:
        causes.append(
            f"{workers} loader workers are too few for the decoding and augmentation [PyTorch docs, DataLoader]"
        )
        advice.append("more workers, persistent_workers=True, a higher prefetch_factor")
    host = history.host[-1] if history.host else None
    if host is not None and host.io_stall_percent is not None and host.io_stall_percent >= 10:
        causes.insert(
            0, f"slow storage: something waited for it {host.io_stall_percent:.0f} % of the time [kernel, PSI]"
        )
        advice.insert(
            0, "the data set on an SSD, or cache=ram / cache=disk with ultralytics, or fewer and larger files"
        )
    elif host is not None and host.cpu_percent is not None and host.cpu_percent >= 90:
        causes.insert(0, f"the processor is used up: {host.cpu_percent:.0f} % of all cores")
        advice.insert(0, "smaller source images, cheaper augmentation, decoding with pillow-simd or turbojpeg")
    return Diagnosis(
        ruled_out=(
            f"not a hang: {steps} steps were made in that time",
            "not a slow GPU: it has nothing to do",
        ),
        causes=tuple(causes),
        advice=tuple(advice),
    )
