"""Reads the losses around a step from the flight recorders of earlier attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from supervisor.core import events as ev
from supervisor.core.checkpoints.loss_curve import REACH_STEPS, Curve, cut_curve
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.scale import Scale
from supervisor.sources.attempt.agent_log import AgentLogReader
from supervisor.sources.attempt.recorder import RecorderReader

LOSSES_READ = 64
ATTEMPTS_READ = 5
"""As many as the cleanup leaves their recorder."""


def past_curve(folders: Iterable[Path], step: int, fault_step: int | None, now: Moment) -> Curve | None:
    """Return the curve around `step`, from the newest attempt that made enough of these steps; None where none did.

    `folders` are those of the attempts, the newest first; `fault_step` and what came after it do not count.
    """
    for folder in _list_counting(folders, now):
        near = [record for record in _read_records(folder, now) if abs(record.step - step) <= REACH_STEPS]
        curve = cut_curve(near, step, fault_step)
        if curve is not None:
            return curve
    return None


def past_losses(folders: Iterable[Path], before_step: int, now: Moment) -> dict[int, float]:
    """Return the losses of the steps before one, by step, each from the newest attempt that made it."""
    losses: dict[int, float] = {}
    for folder in _list_counting(folders, now):
        mine = {
            record.step: record.loss
            for record in _read_records(folder, now)
            if record.loss is not None and before_step - LOSSES_READ <= record.step < before_step
        }
        losses = {**mine, **losses}
    return losses


def _list_counting(folders: Iterable[Path], now: Moment) -> Iterator[Path]:
    return (folder for folder in islice(folders, ATTEMPTS_READ) if _counts_training(folder, now))


def _counts_training(folder: Path, now: Moment) -> bool:
    """Whether an attempt's steps are the training's: steps that a process counts itself have no known place in it."""
    reader, read_bytes = AgentLogReader(folder), -1
    while reader.offset != read_bytes:
        read_bytes = reader.offset
        for fact in reader.read(now):
            if fact.agent_event is ev.AgentEvent.COUNTING:
                return fact.facts.get("scale") != Scale.ATTEMPT.value
    return True


def _read_records(folder: Path, now: Moment) -> Iterator[StepRecord]:
    reader, cursor = RecorderReader(folder), 0
    try:
        while True:
            page = reader.read(cursor, now)
            yield from page.records
            if page.cursor == cursor and not page.behind:
                return
            cursor = page.cursor
    finally:
        reader.close()
