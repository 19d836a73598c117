"""A save that the supervisor asks for, made and answered between two steps while the training waits."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional, Tuple

from rocm_agent import events
from rocm_agent.layout import ANSWER_CANNOT, ANSWER_SAVED, ANSWER_SAVING, CHECKPOINT


class Save:
    """Where a save belongs, and what is told of it."""

    def __init__(self, path: str, step: int, epoch: Optional[int], **told: Any) -> None:
        self.path = os.path.abspath(path)
        self.told: Dict[str, Any] = {"paths": [self.path], "epoch": epoch, "step": step, "requested": True, **told}


def served(
    recorder: Any, command: Tuple[int, int], save: Callable[[], Save], write: Callable[[str], None]
) -> Optional[Tuple[int, int]]:
    """Save and answer; return the command where all went well and the caller is to do the rest of it."""
    before = recorder.stage
    recorder.answer(ANSWER_SAVING, command[1])
    recorder.stage = CHECKPOINT
    try:
        made = save()
        write(made.path)
        events.write("checkpoint_saved", **made.told)
        recorder.answer(ANSWER_SAVED, command[1])
    except Exception as error:
        events.write("save_failed", error="%s: %s" % (type(error).__name__, error))
        recorder.answer(ANSWER_CANNOT, command[1])
        return None
    finally:
        recorder.stage = before
    return command
