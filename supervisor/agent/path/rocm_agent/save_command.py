"""Answers the command to save for a script that cannot: a command that is never asked for is refused."""

from __future__ import annotations

import os
import signal
from typing import Optional, Tuple

from .layout import ANSWER_CANNOT, COMMAND_SAVE_AND_STOP
from .recorder import Recorder

PATIENCE_STEPS = 2

listening = False
"""Whether the script asks `save_requested` itself."""
_unheard: Optional[Tuple[int, int]] = None
_unheard_steps = 0


def refuse_unheard(recorder: Recorder) -> None:
    """Answer that nothing can be saved when a command has waited for some steps and the script never asks."""
    global _unheard, _unheard_steps
    command = recorder.command()
    if command is None or listening:
        return
    _unheard_steps = _unheard_steps + 1 if command == _unheard else 1
    _unheard = command
    if _unheard_steps >= PATIENCE_STEPS:
        recorder.answer(ANSWER_CANNOT, command[1])


def end_if_asked(command: Tuple[int, int]) -> None:
    """End this process as SIGTERM does, if the command requests it; a handler of the script's own runs."""
    if command[0] == COMMAND_SAVE_AND_STOP:
        os.kill(os.getpid(), signal.SIGTERM)
