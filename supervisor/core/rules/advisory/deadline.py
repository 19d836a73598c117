"""Deadline: the training will be done too late. It only warns: the owner chooses what to give up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.reports.progress import Progress, progress_of
from supervisor.core.units import HOUR_S, MINUTE_S

MIN_STRETCHES = 20
"""Ten minutes of stepping: an estimate from the first minutes is too rough for a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Even the early bound of the estimate lies after `at_unix_s`."""

    name: ClassVar[str] = "deadline"
    group: ClassVar[Group] = "pace"
    enabled: bool = True
    at_unix_s: float | None = None
    """None: what [jobs.NAME.expect] says, if anything."""

    def may_flag(self, history: History) -> bool:
        """Whether a deadline is set and an estimate is made."""
        return self.at_unix_s is not None and self._why_blind(history) is None

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long it takes at the least, and how long is left."""
        what = "training that is left at the least, until the deadline"
        why = self._why_blind(history)
        progress = None if why is not None else progress_of(history)
        if self.at_unix_s is None or progress is None or progress.left_early_s is None:
            return not_applicable(what, why or "number of steps not reported by this training")
        left_s = self.at_unix_s - history.now.unix_s
        return (
            Gauge(
                what=what,
                unit="s",
                now=progress.left_early_s,
                limit=left_s,
                strict=True,
                observe=partial(_observe_delay, progress, left_s),
            ),
        )

    def _why_blind(self, history: History) -> str | None:
        """Return why nothing is estimated; None where it is."""
        if self.at_unix_s is None:
            return "no deadline is set"
        usual = history.pace.usual()
        early = usual is None or usual.stretches < MIN_STRETCHES
        return history.why_not_stepping() or ("an estimate takes ten minutes of stepping" if early else None)


def _observe_delay(progress: Progress, left_s: float) -> Observation:
    needed_s = progress.left_s or 0.0
    left = f"{left_s / HOUR_S:.1f} h before the deadline" if left_s > 0 else "the deadline has passed"
    late_h = (needed_s - left_s) / HOUR_S
    return Observation(
        message=f"{needed_s / HOUR_S:.1f} h of training are left, {left}: done {late_h:.1f} h too late",
        can_save=True,
        diagnosis=_diagnose(progress, left_s),
    )


def _diagnose(progress: Progress, left_s: float) -> Diagnosis:
    advice = ["fewer epochs, a larger batch, a smaller image size, a part of the data (fraction= with ultralytics)"]
    if progress.epoch_s and left_s > 0:
        advice.insert(
            0, f"{int(left_s / progress.epoch_s)} more epochs of {progress.epoch_s / MINUTE_S:.0f} min fit before it"
        )
    return Diagnosis(
        ruled_out=("not one slow stretch: even at the pace of its fastest tenth it comes too late",),
        causes=("the plan is larger than the time", "throughput_drop and data_starved show where time goes"),
        advice=tuple(advice),
    )
