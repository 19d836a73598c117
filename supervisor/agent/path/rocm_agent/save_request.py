"""Saves an ultralytics training when it is asked to, at a batch's end; it never touches last.pt and best.pt."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Optional, Tuple

from . import claim
from .recorder import Recorder
from .snapshots.requests import Save, served

if TYPE_CHECKING:
    from .ultralytics_hook import Run

NAME = "rocm_supervisor.pt"


def serve(trainer: Any, run: Run, recorder: Recorder, command: Tuple[int, int]) -> Optional[Tuple[int, int]]:
    """Save and answer; return the command where all went well and the caller is to do the rest of it."""
    if claim.rank != 0:
        return None
    return served(recorder, command, lambda: asked(trainer, run.step), lambda path: save(trainer, run, path))


def asked(trainer: Any, step: int) -> Save:
    """Return where a save that is asked for belongs."""
    os.makedirs(str(trainer.wdir), exist_ok=True)
    return Save(os.path.join(str(trainer.wdir), NAME), step, trainer.epoch - 1)


def save(trainer: Any, run: Run, path: str) -> None:
    """Write the whole state as it stands, whole or not at all.

    Raises ValueError where the weights are not finite or the state cannot be had, OSError where the file cannot be
    written.
    """
    snapshots = run.snapshots
    if snapshots is None:
        raise ValueError("the state of this training is not all in its tensors")
    snapshots.keeper.save(lambda: snapshots.collect(trainer, run.step), path)
