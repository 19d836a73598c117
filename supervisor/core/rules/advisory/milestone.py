"""Milestones: first epoch, a tenth, half and all of the steps; severity info."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.reports.progress import steps_total


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """The first epoch, a tenth, a half and all of the steps, each reported once, in the attempt that reaches it.

    Flags of severity `info`: receivers with min_severity = "info" get them.
    """

    name: ClassVar[str] = "milestone"
    group: ClassVar[Group] = "pace"
    enabled: bool = True

    def check(self, history: History) -> RedFlag | None:
        """Return the highest milestone that this attempt has passed."""
        total = steps_total(history)
        passed = [(step, words) for step, words in _ahead(history) if step <= history.steps[-1].step]
        if not passed:
            return None
        step, words = max(passed)
        return RedFlag(
            rule=self.name,
            severity=Severity.INFO,
            at=history.now,
            message=f"{words}: step {step} of {total}",
            can_save=True,
            subject=words,
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how far each milestone of this attempt is."""
        marks = _ahead(history)
        if not marks:
            return unwatched(self.name, "milestones", "number of steps not reported by this training")
        return tuple(
            Gauge(
                rule=self.name,
                what=words,
                unit="steps",
                now=history.steps[-1].step,
                limit=step,
                severity=Severity.INFO,
            )
            for step, words in marks
        )


def _ahead(history: History) -> list[tuple[int, str]]:
    """Return the milestones that lay before this attempt when it began, each with its step."""
    total, first = steps_total(history), _first_step(history)
    if total is None or not history.steps or first is None:
        return []
    marks = (
        (history.batches_per_epoch or total, "the first epoch is over"),
        (-(-total // 10), "a tenth is done"),
        (-(-total // 2), "half is done"),
        (total, "all steps are done"),
    )
    return [(step, words) for step, words in marks if first < step]


def _first_step(history: History) -> int | None:
    """Return the last step that had been made when the attempt began: a new daemon does not tell old news again."""
    if history.told.start_epoch is not None and history.batches_per_epoch is not None:
        return history.told.start_epoch * history.batches_per_epoch
    first = history.pace.first
    return None if first is None else first.step - 1
