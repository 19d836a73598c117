"""Reads the losses around a step from the flight recorders of earlier attempts; it judges none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from supervisor.core import folder as fo
from supervisor.core.curve import REACH_STEPS, Curve, around
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.sources.recorder import RecorderReader

LOSSES_READ = 64
ATTEMPTS_READ = 5
"""As many as the sweep leaves their recorder."""


def old_curve(folders: Iterable[Path], step: int, trouble_step: int | None, now: Moment) -> Curve | None:
    """Return the curve around `step`, from the newest attempt that made enough of these steps; None where none did.

    `folders` are those of the attempts, the newest first; `trouble_step` and what came after it do not count.
    """
    for number, folder in enumerate(folders):
        if number == ATTEMPTS_READ:
            break
        near = [one for one in _records(folder, now) if abs(one.step - step) <= REACH_STEPS]
        curve = around(near, step, trouble_step)
        if curve is not None:
            return curve
    return None


def old_losses(folders: Iterable[Path], before_step: int, now: Moment) -> dict[int, float]:
    """Return the losses of the steps before one, by step, each from the newest attempt that made it."""
    losses: dict[int, float] = {}
    for number, folder in enumerate(folders):
        if number == ATTEMPTS_READ:
            break
        mine = {
            one.step: one.loss
            for one in _records(folder, now)
            if one.loss is not None and before_step - LOSSES_READ <= one.step < before_step
        }
        losses = {**mine, **losses}
    return losses


def _records(folder: Path, now: Moment) -> Iterator[StepRecord]:
    reader, cursor = RecorderReader(folder / fo.RECORDER), 0
    try:
        while True:
            page = reader.read(cursor, now)
            yield from page.records
            if page.cursor == cursor:
                return
            cursor = page.cursor
    finally:
        reader.close()
