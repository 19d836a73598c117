"""Deadline: the training will be done too late. It only tells: what could be given up is the owner's to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.progress import Progress, progress_of

MIN_STRETCHES = 20
"""Ten minutes of stepping: an estimate of the first minute alarms nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Even the early bound of the estimate lies after `at_unix_s`; `act` changes nothing."""

    name: ClassVar[str] = "deadline"
    enabled: bool = True
    act: Act = False
    at_unix_s: float | None = None
    """None: what [jobs.NAME.expect] says, if anything."""

    def check(self, history: History) -> RedFlag | None:
        """Flag an end that comes too late."""
        usual = history.pace.usual()
        if self.at_unix_s is None or history.over or history.train_ended:
            return None
        if usual is None or usual.stretches < MIN_STRETCHES:
            return None
        progress = progress_of(history)
        if progress.left_s is None or progress.left_early_s is None:
            return None
        left_s = self.at_unix_s - history.now.unix_s
        if progress.left_early_s <= left_s:
            return None
        late_h = (progress.left_s - left_s) / 3600
        left = f"{max(0.0, left_s) / 3600:.1f} h before the deadline" if left_s > 0 else "the deadline has passed"
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"{progress.left_s / 3600:.1f} h of training are left, {left}: done {late_h:.1f} h too late",
            can_save=True,
            diagnosis=_diagnosis(progress, left_s),
        )


def _diagnosis(progress: Progress, left_s: float) -> Diagnosis:
    advice = ["fewer epochs, a larger batch, a smaller image size, a part of the data (fraction= with ultralytics)"]
    if progress.epoch_s and left_s > 0:
        advice.insert(
            0, f"{int(left_s / progress.epoch_s)} more epochs of {progress.epoch_s / 60:.0f} min fit before it"
        )
    return Diagnosis(
        ruled_out=("not one slow stretch: even at the pace of its fastest tenth it comes too late",),
        causes=("the plan is larger than the time", "throughput_drop and data_starved tell where time goes"),
        advice=tuple(advice),
    )
