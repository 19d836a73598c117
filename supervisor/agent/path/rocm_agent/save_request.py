"""Saves an ultralytics training on request, at a batch's end, into a file next to last.pt and best.pt."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Protocol, Tuple

from . import claim
from .recorder import Recorder
from .snapshots.keeper import Keeper
from .snapshots.requests import Save, served

NAME = "rocm_supervisor.pt"


class Snapshots(Protocol):
    """What collects and writes the state of a training."""

    keeper: Keeper

    def collect(self, trainer: Any, step: int) -> Dict[str, Any]:
        """Return the state after `step`."""
        ...


def serve(
    trainer: Any, step: int, snapshots: Optional[Snapshots], recorder: Recorder, command: Tuple[int, int]
) -> Optional[Tuple[int, int]]:
    """Save and answer; return the command where all went well and the caller is to do the rest of it."""
    if claim.rank != 0:
        return None
    return served(recorder, command, lambda: asked(trainer, step), lambda path: save(trainer, step, snapshots, path))


def asked(trainer: Any, step: int) -> Save:
    """Return where a save that is asked for belongs."""
    os.makedirs(str(trainer.wdir), exist_ok=True)
    return Save(os.path.join(str(trainer.wdir), NAME), step, trainer.epoch - 1, kind="snapshot")


def save(trainer: Any, step: int, snapshots: Optional[Snapshots], path: str) -> None:
    """Write the complete state, or no file at all.

    Raises ValueError where the weights are not finite or the state cannot be had, OSError where the file cannot be
    written.
    """
    if snapshots is None:
        raise ValueError("the state of this training is not all in its tensors")
    snapshots.keeper.save(lambda: snapshots.collect(trainer, step), path)
