"""Snapshot overdue: the agent takes snapshots and none was saved for longer than their interval. It only warns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, event_gauge, not_applicable
from supervisor.core.history import History

SILENT_FACTOR = 3.0
"""Where no failure was reported: so many intervals, for the next boundary at which a save is possible may be far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOverdue:
    """Saving failed, and the newest snapshot is older than the interval; or none came for long although steps did.

    A crash then costs more than the interval promises. A restart would not repair saving.
    """

    name: ClassVar[str] = "snapshot_overdue"
    group: ClassVar[Group] = "storage"
    enabled: bool = True
    silence_limit_s: float = 120.0

    def may_flag(self, history: History) -> bool:
        """Whether snapshots are taken, or a save failed."""
        saving = history.reports.saving
        return saving.since is not None or saving.failed_at is not None or bool(saving.asked_error)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long no snapshot was saved, and how long that may be."""
        what, saving = "time without a usable snapshot", history.reports.saving
        why = history.why_not_stepping()
        if why is None and saving.since is None and saving.failed_at is None and not saving.asked_error:
            why = "no snapshots are taken here"
        if why is not None:
            return not_applicable(what, why)
        if saving.asked_error and saving.failed_at is None:
            text = f"the save that was asked for failed: {saving.asked_error}"
            failed = Observation(message=text, subject="asked", can_save=True, diagnosis=FAILING)
            return (event_gauge("the save that was asked for failed", failed),)
        since_s = _since_s(history)
        if since_s is None:
            return not_applicable(what, "no step was made yet")
        limit_s, observe = self._limit_s(history), partial(_observe_age, history, since_s)
        return (Gauge(what=what, unit="s", now=since_s, limit=limit_s, learned=True, observe=observe),)

    def _limit_s(self, history: History) -> float:
        saving = history.reports.saving
        every_s = saving.every_s or 0.0
        return every_s if saving.failed_at is not None else max(SILENT_FACTOR * every_s, self.silence_limit_s)


def _observe_age(history: History, since_s: float) -> Observation:
    saving = history.reports.saving
    every = "" if saving.every_s is None else f" (interval {saving.every_s:.0f} s)"
    why = f": {saving.error}" if saving.failed_at is not None else ", and no failure was reported"
    text = f"no usable snapshot for {since_s:.0f} s{every}{why}"
    return Observation(message=text, can_save=True, diagnosis=FAILING)


def _since_s(history: History) -> float | None:
    """Return the seconds from the newest snapshot, or the first step, to now; without a failure to the newest step.

    Where no failure is reported a long validation is not held against the snapshots: they are taken at steps.
    """
    saving, first = history.reports.saving, history.first_step_at
    begun = saving.at or first
    if begun is None:
        return None
    until = history.now if saving.failed_at is not None else history.last_step_at
    return None if until is None else max(0.0, history.absences.seconds(begun, until))


FAILING = Diagnosis(
    causes=(
        "the disk is full, or the folder may not be written",
        "the state holds NaN or infinity: it does not replace a finite one",
        "a part of the training cannot be copied or pickled",
    ),
    advice=("a crash now goes back to the training's own newest checkpoint: supervisorctl checkpoints JOB shows it",),
)
