"""Checkpoint overdue: long work that no checkpoint holds, measured by what saves go by: the clock or the steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, beyond, not_applicable
from supervisor.core.history import History
from supervisor.core.remedies import causes
from supervisor.core.stats.median import median
from supervisor.core.units import HOUR_S

SAME_SAVE_S = 0.5
"""Files that are written closer together than this, or at the same step, are one save."""
IRREGULAR = 2.0
"""Where the longest gap is so many times the usual one, saves go by neither: by a better metric, say."""
CLOCK_MARGIN = 0.9
"""The clock is believed where its gaps spread less than those of the steps by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """How far apart the training's own saves are."""

    gap: float
    by_clock: bool = False
    """Whether `gap` is in seconds, and not in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOverdue:
    """`overdue_factor` times the usual gap between two saves (or one epoch) has gone by since the last one.

    Where no save is reported: `limit_s` without a file that was seen. It warns by default: an epoch can be long, and
    with `act` it saves and restarts.
    """

    name: ClassVar[str] = "checkpoint_overdue"
    group: ClassVar[Group] = "storage"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: Act = False
    overdue_factor: float = 2.2
    limit_s: float = 14400.0

    def may_flag(self, history: History) -> bool:
        """Whether the work since the last checkpoint has reached its limit."""
        if history.over or history.train_ended or not history.steps:
            return False
        since, limit = self._compare_unsaved(history, _find_usual(history))
        return since is not None and beyond(since, limit)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how much was done since the last checkpoint."""
        why = history.why_not_stepping() or (None if history.steps else "no step was made yet")
        if why is not None:
            return not_applicable("work that no checkpoint holds", why)
        usual = _find_usual(history)
        since, limit = self._compare_unsaved(history, usual)
        if usual is None:
            what = "time without a checkpoint"
        else:
            what = "time since the last checkpoint" if usual.by_clock else "steps since the last checkpoint"
        return (
            Gauge(
                what=what,
                unit="s" if usual is None or usual.by_clock else "steps",
                now=since,
                limit=limit,
                strict=usual is not None,
                learned=usual is not None,
                severity=Severity.acting(act=self.act),
                not_watched="no step was made yet" if since is None else None,
                observe=partial(_observe_unsaved, history, usual, since or 0.0),
            ),
        )

    def _compare_unsaved(self, history: History, usual: Usual | None) -> tuple[float | None, float]:
        """Return the seconds or steps since the last checkpoint, None where not known, and their limit."""
        if usual is None:
            return _since_s(history), self.limit_s
        since = _unsaved_s(history) if usual.by_clock else _count_unsaved(history)[0]
        return since, self.overdue_factor * usual.gap


def _observe_unsaved(history: History, usual: Usual | None, since: float) -> Observation:
    if usual is None:
        text = f"no checkpoint was seen for {since / HOUR_S:.1f} h"
    elif usual.by_clock:
        text = f"no checkpoint was saved for {since:.0f} s (usual: every {usual.gap:.0f} s)"
    else:
        known = _count_unsaved(history)[1]
        what = "since the last checkpoint" if known else "in this attempt and none was seen saved"
        text = f"{since:.0f} steps were made {what} (usual: every {usual.gap:.0f})"
    return Observation(message=f"{text}: a crash now costs all of it", can_save=True, diagnosis=OVERDUE)


def _count_unsaved(history: History) -> tuple[int, bool]:
    """Return the steps since the last save or try of one, a snapshot included, and whether there was any."""
    last, first, saves = history.steps[-1].step, history.pace.first, history.saves
    saved = (saves.saved[-1][1] if saves.saved else None, saves.saving_step, saves.snapshot_step)
    known = [checkpoint for checkpoint in saved if checkpoint is not None]
    return last - max(known, default=first.step - 1 if first else last), bool(known)


def _unsaved_s(history: History) -> float:
    """Return the seconds of stepping since the last save, a snapshot included; at least one save was seen."""
    saved, snapshot, newest = history.saves.saved[-1][0], history.reports.saving.at, history.steps[-1].at
    last = saved if snapshot is None else max(saved, snapshot, key=lambda at: at.monotonic_s)
    return max(0.0, history.absences.seconds(last, newest))


def _since_s(history: History) -> float | None:
    """Return the seconds since the newest checkpoint file, or the first step; None before that."""
    if history.first_step_at is None:
        return None
    since_s = history.seconds_since(history.first_step_at)
    if history.saves.saved_unix_s is None:
        return since_s
    return min(since_s, history.seconds_since(history.now.plus(history.saves.saved_unix_s - history.now.unix_s)))


def _find_usual(history: History) -> Usual | None:
    """Return the gap between two saves, by the measure in which the gaps are most alike; None: unknown.

    For a framework that saves each epoch it is an epoch until two gaps are known.
    """
    pairs = list(pairwise(history.saves.saved))
    steps = [b[1] - a[1] for a, b in pairs if a[1] is not None and b[1] is not None and b[1] > a[1]]
    seconds = [gap for a, b in pairs if (gap := b[0].seconds_since(a[0])) > SAME_SAVE_S and a[1] != b[1]]
    if len(steps) >= 2:
        clock = len(seconds) >= 2 and _measure_spread(seconds) < CLOCK_MARGIN * _measure_spread(steps)
        gaps = seconds if clock else steps
        gap = median(gaps)
        return Usual(gap=max(gaps) if max(gaps) > IRREGULAR * gap else gap, by_clock=clock)
    if history.plan.saves_each_epoch and history.plan.batches_per_epoch:
        return Usual(gap=float(history.plan.batches_per_epoch))
    return None


def _measure_spread(gaps: list[float] | list[int]) -> float:
    """Return how many times the shortest gap the longest is."""
    return max(gaps) / min(gaps)


OVERDUE = Diagnosis(
    ruled_out=("not a stall: steps are made",),
    causes=(
        "saving is switched off (save=False) or rarer than it was",
        "saves fail and the training goes on: a full disk, rights, a model that cannot be pickled "
        "[robust-thermal-image-object-detection]",
        "the script saves to a path that no pattern in checkpoints.paths covers",
    ),
    advice=("[jobs.NAME.checkpoints] paths names files that are to be seen; supervisorctl checkpoints JOB shows them",),
)
