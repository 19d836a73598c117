"""Saves an ultralytics training when it is asked to, at a batch's end; it never touches last.pt and best.pt."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Optional, Tuple

from . import claim, events
from .layout import ANSWER_CANNOT, ANSWER_SAVED, ANSWER_SAVING, CHECKPOINT
from .recorder import Recorder

if TYPE_CHECKING:
    from .ultralytics_hook import Run

NAME = "rocm_supervisor.pt"


def serve(trainer: Any, run: Run, recorder: Recorder, command: Tuple[int, int]) -> Optional[Tuple[int, int]]:
    """Save and answer; return the command where all went well and the caller is to do the rest of it."""
    if claim.rank != 0:
        return None
    before = recorder.stage
    recorder.answer(ANSWER_SAVING, command[1])
    recorder.stage = CHECKPOINT
    try:
        path = save(trainer, run)
        events.write("checkpoint_saved", paths=[path], epoch=trainer.epoch - 1, step=run.step, requested=True)
        recorder.answer(ANSWER_SAVED, command[1])
    except Exception as error:
        events.write("save_failed", error="%s: %s" % (type(error).__name__, error))
        recorder.answer(ANSWER_CANNOT, command[1])
        return None
    finally:
        recorder.stage = before
    return command


def save(trainer: Any, run: Run) -> str:
    """Write the whole state as it stands, whole or not at all, and return its path.

    Raises ValueError where the weights are not finite or the state cannot be had, OSError where the file cannot be
    written.
    """
    snapshots = run.snapshots
    if snapshots is None:
        raise ValueError("the state of this training is not all in its tensors")
    os.makedirs(str(trainer.wdir), exist_ok=True)
    target = os.path.abspath(os.path.join(str(trainer.wdir), NAME))
    snapshots.keeper.save(lambda: snapshots.collect(trainer, run.step), target)
    return target
