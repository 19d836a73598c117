"""A save that the supervisor asks for, made between two steps and answered; the training waits for it."""

from __future__ import annotations

import os
from typing import Any, Optional, Tuple

from rocm_agent import events
from rocm_agent.layout import ANSWER_CANNOT, ANSWER_SAVED, ANSWER_SAVING, CHECKPOINT

from .keeper import Collect, Keeper


def at_boundary(
    keeper: Keeper, recorder: Any, collect: Collect, step: int, epoch: Optional[int]
) -> Optional[Tuple[int, int]]:
    """Save where it was asked for, else take a snapshot where one is due; return the command that was served."""
    command = recorder.command()
    if command is None:
        if keeper.wants():
            keeper.take(collect, step, epoch)
        return None
    before = recorder.stage
    recorder.answer(ANSWER_SAVING, command[1])
    recorder.stage = CHECKPOINT
    try:
        path = os.path.abspath(keeper.path(step))
        keeper.save(collect, path)
        events.write("checkpoint_saved", paths=[path], epoch=epoch, step=step, requested=True, kind="snapshot")
        recorder.answer(ANSWER_SAVED, command[1])
    except Exception as error:
        events.write("save_failed", error="%s: %s" % (type(error).__name__, error))
        recorder.answer(ANSWER_CANNOT, command[1])
        return None
    finally:
        recorder.stage = before
    return command
