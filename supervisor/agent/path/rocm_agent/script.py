"""The calls that a training script can make. They never raise, and do nothing without a supervisor.

Once a script has called `step`, what the hooks would have counted by themselves is not counted.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os
import sys

from . import batch_count, claim, events, origin
from .fence import fenced

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Optional

_last_step = 0
_scalars = None
_memory = None
_requested = None
"""The command that the script has received and not yet served."""


@fenced
def step(loss: Any = None, step: Optional[int] = None, epoch: Optional[int] = None, lr: Any = None) -> None:
    """Record one step of the training, after it was made.

    `step` counts from 1 over the training and continues after a resume; None: one more than the last.
    `loss` and `lr` are numbers or tensors of one element; one that lies on a GPU is recorded a step late, so that
    nothing waits for it. `epoch` counts from 0.
    """
    global _last_step
    recorder = claim.take(claim.EXPLICIT)
    if recorder is None:
        return
    from . import layout, save_command
    from .scalars import number

    if step is None:
        step = _last_step + 1 if _last_step else origin.first_step(None)
    _last_step = int(step)
    loss_now = _read_late(loss) if hasattr(loss, "is_cuda") else number(loss)
    recorder.record(_last_step, epoch, loss_now, number(lr), None, None, _memory_bytes(), 0, *batch_count.drawn.take())
    recorder.stage, recorder.aside = layout.STEP, 0
    save_command.refuse_unheard(recorder)


@fenced
def stage(name: str) -> None:
    """Say where the training stands: setup, warmup, step, data_wait, compile, validate, checkpoint or ended.

    `data_wait` and `compile` lie inside a step and end with it.
    """
    recorder = claim.take(claim.EXPLICIT)
    if recorder is not None:
        from .layout import ASIDES, STAGES

        if name in ASIDES:
            recorder.aside = ASIDES.index(name)
        else:
            recorder.stage, recorder.aside = STAGES.index(name), 0


@fenced
def save_requested() -> bool:
    """Whether the supervisor wants a checkpoint now: save one, then call `checkpoint_saved`.

    Ask after every step. A script that never asks is not waited for.
    """
    global _requested
    recorder = claim.take(claim.EXPLICIT)
    if recorder is None:
        return False
    from . import save_command
    from .layout import ANSWER_SAVING

    save_command.listening = True
    command = recorder.command()
    if command is not None and command != _requested:
        recorder.answer(ANSWER_SAVING, command[1])
    _requested = command
    return command is not None


def checkpoint_saved(path: Any, epoch: Optional[int] = None, step: Optional[int] = None) -> None:
    """Report that `path` is a complete checkpoint of `step`, with `epoch` (from 0) as its last complete one.

    Where `save_requested` asked for it and the supervisor wants the process to stop, this ends it as SIGTERM does.
    """
    ending = _report_saved(path, epoch, step)
    if ending is not None:
        from .save_command import end_if_asked

        end_if_asked(ending)


@fenced
def _report_saved(path: Any, epoch: Optional[int], step: Optional[int]) -> Any:
    global _requested
    recorder = claim.take(claim.EXPLICIT)
    if recorder is None:
        return None
    from .layout import ANSWER_SAVED

    command, _requested = _requested, None
    step = (_last_step or None) if step is None else step
    paths = [os.path.abspath(os.fspath(path))]
    events.write("checkpoint_saved", paths=paths, epoch=epoch, step=step, requested=command is not None)
    if command is not None:
        recorder.answer(ANSWER_SAVED, command[1])
    return command


def setting(name: str, otherwise: Any = None) -> Any:
    """Return what the supervisor wants a setting of the script to be, `otherwise` where it wants nothing.

    `batch_factor`, `image_factor`, `amp`, `workers`, ...: a script that calls this is assumed to apply the value.
    """
    from . import remedies

    remedies.asked(name)
    value = remedies.wanted(name)
    if value is None:
        return otherwise
    remedies.report_applied(name, "%s %s, by the script" % (name, value))
    return value


def resume_from() -> Optional[str]:
    """Return the checkpoint to go on from, None to begin at the beginning."""
    origin.asks()
    return os.environ.get("ROCM_SUPERVISOR_RESUME_FROM") or None


def last_step() -> int:
    """Return the last step that the script reported, 0 before the first."""
    return _last_step


def _memory_bytes() -> Optional[int]:
    """Return what torch's allocator holds, where the script has imported torch."""
    global _memory
    if _memory is None:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda"):
            return None
        from .scalars import GpuMemory

        _memory = GpuMemory(torch)
    return _memory.read()


def _read_late(loss: Any) -> Any:
    global _scalars
    if _scalars is None:
        from .scalars import LateScalars

        _scalars = LateScalars(sys.modules["torch"])
    return _scalars.exchange(loss, None)[0]
