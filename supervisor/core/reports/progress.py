"""How far a training has come, and an estimate with its interval of when it will be done.

The remaining time consists of steps, at the pace of this attempt's stretches, and of the pauses between epochs
(validation, checkpoint, loaders). The early and late bounds apply the fast and the slow tenth of both to all that is
left, since a slow-down tends to last; restarts are not included.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.history import History
from supervisor.core.scale import Scale
from supervisor.core.stats.median import quantile

PACE_NEEDS_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a training; None is unknown."""

    steps: int | None = None
    """Steps of the training made, including earlier attempts; None where only the attempt's own count is known."""
    attempt_steps: int | None = None
    """Made by this attempt alone."""
    steps_total: int | None = None
    epoch: int | None = None
    """Counted from 0."""
    epochs: int | None = None
    batches_per_epoch: int | None = None
    step_s: float | None = None
    """While stepping."""
    epoch_s: float | None = None
    """One epoch with its pause."""
    left_s: float | None = None
    left_early_s: float | None = None
    left_late_s: float | None = None
    steps_expected: int | None = None
    """What should be made by now at the owner's pace; None where they named none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seconds:
    """A duration with its bounds."""

    early: float
    usual: float
    late: float

    def times(self, count: float) -> _Seconds:
        return _Seconds(early=self.early * count, usual=self.usual * count, late=self.late * count)

    def plus(self, other: _Seconds) -> _Seconds:
        return _Seconds(early=self.early + other.early, usual=self.usual + other.usual, late=self.late + other.late)


def progress_of(history: History, wanted_per_s: float | None = None) -> Progress:
    """Return the progress of an attempt's training; `wanted_per_s` is the owner's pace, in steps per second."""
    last = history.last_step
    total = steps_total(history)
    step = _measure_step_s(history)
    pause = _measure_pause_s(history, step)
    left = _estimate_left(history, step, pause, total)
    batches = history.plan.batches_per_epoch or history.plan.steps_per_epoch
    return Progress(
        steps=last.step if last and history.scale is not Scale.ATTEMPT else None,
        attempt_steps=history.made_here,
        steps_total=total,
        epoch=_epoch_by_steps(history) if last else None,
        epochs=history.plan.epochs,
        batches_per_epoch=batches,
        step_s=step.usual if step else None,
        epoch_s=step.usual * batches + (pause.usual if pause else 0.0) if step and batches else None,
        left_s=left.usual if left else None,
        left_early_s=left.early if left else None,
        left_late_s=left.late if left else None,
        steps_expected=_count_expected(history, wanted_per_s),
    )


def steps_total(history: History) -> int | None:
    """Return how many steps the training has in total, as far as its plan and its own count are known."""
    if history.scale is Scale.ATTEMPT:
        return None
    if not history.plan.planned:
        return _total_of_loops(history)
    batches = history.plan.batches_per_epoch or history.plan.steps_per_epoch
    if history.plan.total_steps is not None:
        return history.plan.total_steps
    return None if history.plan.epochs is None or batches is None else history.plan.epochs * batches


def _total_of_loops(history: History) -> int | None:
    """Return the total that a training's own loops come to; one that was passed was not the whole training's."""
    total, last = history.plan.total_steps, history.last_step
    return None if total is None or (last is not None and last.step > total) else total


def _epoch_by_steps(history: History) -> int | None:
    """Return the epoch under way, from 0, where the steps of all epochs are known; a hook that counts them wins."""
    last, batches = history.steps[-1], history.plan.steps_per_epoch
    if last.epoch is not None or history.plan.planned:
        return last.epoch
    if batches is None or history.plan.epochs is None or steps_total(history) != history.plan.epochs * batches:
        return None
    return (last.step - 1) // batches


def _measure_step_s(history: History) -> _Seconds | None:
    usual = history.pace.usual()
    if usual is not None:
        return _Seconds(early=usual.fast_step_s, usual=usual.step_s, late=usual.slow_step_s)
    first, last = history.pace.first, history.pace.last
    if first is None or last is None or history.pace.steps < PACE_NEEDS_STEPS:
        return None
    # Before the first minutes are over: all there is, with room for what a beginning does not show.
    took_s = last.at.seconds_since(first.at) - history.pace.idle_s
    each_s = max(0.0, took_s) / history.pace.steps
    return _Seconds(early=each_s / 2, usual=each_s, late=each_s * 2) if each_s > 0 else None


def _measure_pause_s(history: History, step: _Seconds | None) -> _Seconds | None:
    """Return what lies between two epochs, without the step that ends it."""
    step_s = step.usual if step is not None else 0.0
    pauses = sorted(max(0.0, pause - step_s) for pause in history.pace.pauses)
    if not pauses:
        return None
    return _Seconds(early=quantile(pauses, 0.1), usual=quantile(pauses, 0.5), late=quantile(pauses, 0.9))


def _estimate_left(
    history: History, step: _Seconds | None, pause: _Seconds | None, total: int | None
) -> _Seconds | None:
    if step is None or total is None or not history.steps:
        return None
    last, batches = history.steps[-1], history.plan.batches_per_epoch or history.plan.steps_per_epoch
    left = step.times(max(0, total - last.step))
    if batches and pause is not None:
        left = left.plus(pause.times(max(0, -(-(total - last.step) // batches))))
    return left


def _count_expected(history: History, wanted_per_s: float | None) -> int | None:
    """Return the step that the owner's pace would have reached: from this attempt's first step on, pauses left out."""
    first, last = history.pace.first, history.pace.last
    if wanted_per_s is None or first is None or last is None or history.scale is Scale.ATTEMPT:
        return None
    stepping_s = max(0.0, last.at.seconds_since(first.at) - history.pace.idle_s)
    return first.step + int(stepping_s * wanted_per_s)
