"""Snapshot overdue: the agent takes snapshots and none was saved for longer than their interval. It only warns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.unseen import no_steps_due

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

    def check(self, history: History) -> RedFlag | None:
        """Flag a training whose snapshots fail or do not come."""
        watched = self.watch(history)[0]
        return self._flag(history, watched) if watched.reached else None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long no snapshot was saved, and how long that may be."""
        what, saving = "time without a usable snapshot", history.told.saving
        why = no_steps_due(history)
        if why is None and saving.since is None and saving.failed_at is None and not saving.asked_error:
            why = "no snapshots are taken here"
        if why is not None:
            return unwatched(self.name, what, why)
        if saving.asked_error and saving.failed_at is None:
            return (Gauge(rule=self.name, what="the save that was asked for failed", met=True),)
        since_s = _since_s(history)
        if since_s is None:
            return unwatched(self.name, what, "no step was made yet")
        return (Gauge(rule=self.name, what=what, unit="s", now=since_s, limit=self._limit_s(history), learned=True),)

    def _limit_s(self, history: History) -> float:
        saving = history.told.saving
        every_s = saving.every_s or 0.0
        return every_s if saving.failed_at is not None else max(SILENT_FACTOR * every_s, self.silence_limit_s)

    def _flag(self, history: History, watched: Gauge) -> RedFlag:
        saving = history.told.saving
        if watched.now is None:
            subject, text = "asked", f"the save that was asked for failed: {saving.asked_error}"
        else:
            every = "" if saving.every_s is None else f" (interval {saving.every_s:.0f} s)"
            why = f": {saving.error}" if saving.failed_at is not None else ", and no failure was reported"
            subject, text = "", f"no usable snapshot for {watched.now:.0f} s{every}{why}"
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=text,
            can_save=True,
            subject=subject,
            diagnosis=FAILING,
        )


def _since_s(history: History) -> float | None:
    """Return the seconds from the newest snapshot, or the first step, to now; without a failure to the newest step.

    Where no failure is reported a long validation is not held against the snapshots: they are taken at steps.
    """
    saving, first = history.told.saving, history.first_step_at
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
