"""Counts the steps of DeepSpeed's engine: those that it skips too, and one where its optimizer steps for each group.

An engine of bfloat16 calls the optimizer when it is made, which is no step; without ZeRO the optimizer's own count
begins with it, and goes on so over a resume. ZeRO-3 calls it once for each group of 1e9 weights. Where a gradient is
not finite it is not called, in bfloat16 as well: with weights of NaN no step would be seen any more.
"""

from __future__ import annotations

from functools import wraps

from . import step_watch, torch_hook
from .fence import fenced

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Optional


def install(module: ModuleType) -> None:
    """Hook the engine of `deepspeed.runtime.engine`."""
    fenced(_watch_steps)(module.DeepSpeedEngine)
    fenced(_watch_losses)(module.DeepSpeedEngine)


def _watch_steps(engine: Any) -> None:
    original, make = engine._take_model_step, engine.__init__

    @wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that method's place
        before = _count(kwargs.get("optimizer")) or 0
        with torch_hook.Uncounted():
            make(self, *args, **kwargs)
        optimizer = _optimizer_of(self)
        torch_hook.calls_were_no_steps(optimizer, (_count(optimizer) or 0) - before)

    @wraps(original)
    def _take_model_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        skipped = _count_skipped(self)
        with torch_hook.Uncounted():
            result = original(self, *args, **kwargs)
        torch_hook.step_was_made(_optimizer_of(self), skipped=_count_skipped(self) > skipped)
        return result

    engine.__init__, engine._take_model_step = __init__, _take_model_step


def _optimizer_of(engine: Any) -> Any:
    """Return the optimizer within what the engine wraps around it."""
    return getattr(engine, "basic_optimizer", None) or getattr(engine, "optimizer", None)


def _count_skipped(engine: Any) -> int:
    return getattr(engine, "skipped_steps", 0)


@fenced
def _count(optimizer: Any) -> Optional[int]:
    """Return what an optimizer has counted; None for one that counts nothing, and for a function that makes one."""
    return step_watch.count_of(optimizer) if hasattr(optimizer, "state") else None


def _watch_losses(engine: Any) -> None:
    """Note the loss that `backward` is given: what is differentiated is its multiple in float16."""
    original = engine.backward

    @wraps(original)
    def backward(self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, loss, *args, **kwargs)
        torch_hook.loss_is(loss)
        return result

    engine.backward = backward
    if not hasattr(engine, "scale"):
        return
    scale = engine.scale

    @wraps(scale)
    def scaled(self: Any, loss: Any) -> Any:
        result = scale(self, loss)
        torch_hook.loss_was_scaled(loss, result)
        return result

    engine.scale = scaled
