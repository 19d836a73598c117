"""What the owner expects of a training, compared with what is known: met, not met, or unknown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from supervisor.core.gpu_facts import hottest
from supervisor.core.history import History
from supervisor.core.reports.progress import Progress
from supervisor.core.stats.holds import FRESH_S
from supervisor.core.units import GB, HOUR_S, MINUTE_S

Verdict: TypeAlias = Literal["met", "not_met", "unknown"]
LATELY_S = 600.0
"""Temperatures of this long count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The owner's success criteria; None and False expect nothing."""

    batches_per_s: float | None = None
    checkpoint_each_epoch: bool = False
    losses_fall: bool = False
    map_rises: bool = False
    max_temperature_c: float | None = None
    max_vram_bytes: int | None = None
    no_nan: bool = False
    deadline_unix_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One expectation and its verdict."""

    name: str
    verdict: Verdict
    text: str
    """With numbers, for a person."""


def checklist(expected: Expectation, history: History, progress: Progress) -> tuple[Criterion, ...]:
    """Return every criterion that the owner named, in the order of the settings."""
    return tuple(_check_all(expected, history, progress))


def _check_all(expected: Expectation, history: History, progress: Progress) -> Iterator[Criterion]:
    if expected.batches_per_s is not None:
        yield _check_pace(expected.batches_per_s, history, progress)
    if expected.checkpoint_each_epoch:
        yield _check_checkpoints(history)
    if expected.losses_fall:
        yield _check_losses(history)
    if expected.map_rises:
        yield _check_merit(history)
    if expected.max_temperature_c is not None:
        yield _check_temperature(expected.max_temperature_c, history)
    if expected.max_vram_bytes is not None:
        yield _check_vram(expected.max_vram_bytes, history)
    if expected.no_nan:
        yield _check_finite(history)
    if expected.deadline_unix_s is not None:
        yield _check_deadline(expected.deadline_unix_s, history, progress)


def _make_criterion(name: str, *, met: bool | None, text: str) -> Criterion:
    verdict: Verdict = "unknown" if met is None else "met" if met else "not_met"
    return Criterion(name=name, verdict=verdict, text=text)


def _check_pace(wanted_per_s: float, history: History, progress: Progress) -> Criterion:
    name = "batches_per_s"
    if not progress.step_s:
        return _make_criterion(name, met=None, text=f"at least {wanted_per_s:g}/s required, no pace is known yet")
    per_s = 1 / progress.step_s
    text = f"{per_s:.3g}/s, at least {wanted_per_s:g}/s required"
    if progress.steps_expected is not None and progress.steps is not None:
        text += f"; {progress.steps} steps made, {progress.steps_expected} expected by now at that pace"
    return _make_criterion(name, met=per_s >= wanted_per_s, text=text)


def _check_checkpoints(history: History) -> Criterion:
    """One saved after each epoch that is over; the newest epoch's may still be under way."""
    name = "checkpoint_each_epoch"
    over, saved = len(history.pace.pauses), len(history.saves.saved)
    if not over:
        return _make_criterion(name, met=None, text="no epoch of this attempt has ended yet")
    if not saved and history.saves.saved_unix_s is None:
        return _make_criterion(name, met=False, text=f"{over} epochs ended and no checkpoint was seen")
    if not saved:
        return _make_criterion(name, met=None, text="checkpoints exist, but which epoch saved them is not reported")
    return _make_criterion(name, met=saved >= over, text=f"{saved} checkpoints saved in {over} epochs")


def _check_losses(history: History) -> Criterion:
    means = [epoch_loss.mean for epoch_loss in history.losses.epochs]
    if len(means) < 2:
        return _make_criterion("losses_fall", met=None, text="two epochs must have ended")
    fell = means[-1] < means[0] if all(map(math.isfinite, (means[0], means[-1]))) else False
    return _make_criterion(
        "losses_fall", met=fell, text=f"mean loss {means[0]:.4g} in the first epoch, {means[-1]:.4g} in the newest"
    )


def _check_merit(history: History) -> Criterion:
    values = [value for epoch_end in history.reports.epochs if (value := epoch_end.merit) is not None]
    if len(values) < 2:
        return _make_criterion("map_rises", met=None, text="two validations must have ended")
    first, best, last = values[0], max(values), values[-1]
    text = f"first {first:.4g}, newest {last:.4g}, best {best:.4g}"
    return _make_criterion("map_rises", met=best > first, text=text)


def _check_temperature(limit_c: float, history: History) -> Criterion:
    found = [
        (pair[1], gpu)
        for gpu, readings in history.readings_by_gpu().items()
        for reading in readings
        if history.now.seconds_since(reading.at) <= LATELY_S and (pair := hottest(reading)) is not None
    ]
    if not found:
        return _make_criterion("max_temperature_c", met=None, text="no GPU reports its temperature")
    celsius, gpu = max(found)
    return _make_criterion(
        "max_temperature_c",
        met=celsius <= limit_c,
        text=f"{gpu} reached {celsius:.0f} C in the last {LATELY_S / MINUTE_S:.0f} min, limit {limit_c:g} C",
    )


def _check_vram(limit_bytes: int, history: History) -> Criterion:
    used = [
        reading.memory_used_bytes
        for reading in history.newest_by_gpu().values()
        if history.now.seconds_since(reading.at) <= FRESH_S and reading.memory_used_bytes is not None
    ]
    if not used:
        return _make_criterion("max_vram_bytes", met=None, text="no GPU reports its memory use")
    most = max(used)
    text = f"{most / GB:.2f} GB in use, limit {limit_bytes / GB:.2f} GB"
    return _make_criterion("max_vram_bytes", met=most <= limit_bytes, text=text)


def _check_finite(history: History) -> Criterion:
    if not history.steps:
        return _make_criterion("no_nan", met=None, text="no step is known yet")
    bad = [record for record in history.non_finite if record.loss is not None and not math.isfinite(record.loss)]
    text = f"{len(bad)} losses of this attempt were not finite" + (f", first at step {bad[0].step}" if bad else "")
    return _make_criterion("no_nan", met=not bad, text=text)


def _check_deadline(deadline_unix_s: float, history: History, progress: Progress) -> Criterion:
    if progress.left_s is None or progress.left_early_s is None or progress.left_late_s is None:
        return _make_criterion("deadline", met=None, text="the end cannot be estimated yet")
    slack_h = (deadline_unix_s - history.now.unix_s - progress.left_s) / HOUR_S
    early_h, late_h = progress.left_early_s / HOUR_S, progress.left_late_s / HOUR_S
    when = f"{slack_h:.1f} h before the deadline" if slack_h >= 0 else f"{-slack_h:.1f} h after the deadline"
    text = f"{progress.left_s / HOUR_S:.1f} h left ({early_h:.1f} to {late_h:.1f} h), expected to end {when}"
    return _make_criterion("deadline", met=slack_h >= 0, text=text)
