"""A save that the supervisor asks for, made and answered between two steps while the training waits."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional, Tuple

from rocm_agent import events
from rocm_agent.layout import ANSWER_CANNOT, ANSWER_SAVED, ANSWER_SAVING, CHECKPOINT


class Save:
    """The path of a save, and its report."""

    def __init__(self, path: str, step: int, epoch: Optional[int], **report: Any) -> None:
        self.path = os.path.abspath(path)
        self.report: Dict[str, Any] = {"paths": [self.path], "epoch": epoch, "step": step, "requested": True, **report}


def served(
    recorder: Any, command: Tuple[int, int], save: Callable[[], Save], write: Callable[[str], None]
) -> Optional[Tuple[int, int]]:
    """Save and answer; return the command where all succeeded and the caller has to complete it."""
    before = recorder.stage
    recorder.answer(ANSWER_SAVING, command[1])
    recorder.stage = CHECKPOINT
    try:
        made = save()
        write(made.path)
        events.write("checkpoint_saved", **made.report)
        recorder.answer(ANSWER_SAVED, command[1])
    except Exception as error:
        events.write("save_failed", error="%s: %s" % (type(error).__name__, error))
        recorder.answer(ANSWER_CANNOT, command[1])
        return None
    finally:
        recorder.stage = before
    return command
