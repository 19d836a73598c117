"""Milestones: first epoch, a tenth, half and all of the steps; severity info."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
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

    def may_flag(self, history: History) -> bool:
        """Whether the attempt has passed a milestone."""
        return any(step <= history.steps[-1].step for step, _ in _list_milestones(history))

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how far each milestone of this attempt is, the last one first: of those passed it is the flag."""
        marks = sorted(_list_milestones(history), reverse=True)
        if not marks:
            return not_applicable("milestones", "number of steps not reported by this training")
        return tuple(
            Gauge(
                what=words,
                unit="steps",
                now=history.steps[-1].step,
                limit=step,
                severity=Severity.INFO,
                observe=partial(_observe_milestone, words, step, steps_total(history)),
            )
            for step, words in marks
        )


def _observe_milestone(words: str, step: int, total: int | None) -> Observation:
    return Observation(message=f"{words}: step {step} of {total}", can_save=True, subject=words)


def _list_milestones(history: History) -> list[tuple[int, str]]:
    """Return the milestones that lay before this attempt when it began, each with its step."""
    total, first = steps_total(history), _first_step(history)
    if total is None or not history.steps or first is None:
        return []
    marks = [(-(-total // 10), "a tenth is done"), (-(-total // 2), "half is done"), (total, "all steps are done")]
    epoch = _find_epoch_steps(history, total)
    if epoch is not None and epoch < total:
        marks.append((epoch, "the first epoch is over"))
    return [(step, words) for step, words in marks if first < step]


def _find_epoch_steps(history: History, total: int) -> int | None:
    """Return how many steps an epoch has; None without epochs, or where they do not come to the total."""
    plan = history.plan
    steps = plan.batches_per_epoch or plan.steps_per_epoch
    if steps is None and plan.epochs and total % plan.epochs == 0:
        steps = total // plan.epochs
    if steps is None or plan.planned:
        return steps
    return steps if plan.epochs is not None and plan.epochs * steps == total else None


def _first_step(history: History) -> int | None:
    """Return the last step made when the attempt began: a new daemon does not report old milestones."""
    if history.reports.start_epoch is not None and history.plan.batches_per_epoch is not None:
        return history.reports.start_epoch * history.plan.batches_per_epoch
    first = history.pace.first
    return None if first is None else first.step - 1
