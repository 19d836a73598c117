"""Reports the checkpoint stage while a JAX training saves with orbax or waits for a save: it may take minutes.

Which folder it restores its state from is noted: optax keeps no count of steps that could be read.
"""

from __future__ import annotations

import threading
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any, Callable, Optional

from . import claim, origin
from .fence import fenced
from .layout import CHECKPOINT, STEP
from .recorder import Recorder

SAVING = ("save", "wait_until_finished")


def install(module: ModuleType) -> None:
    """Watch the classes of `module` that save: orbax has a checkpointer, an asynchronous one and a manager of both."""
    for kind in vars(module).copy().values():
        if not isinstance(kind, type) or kind.__module__ != module.__name__:
            continue
        for name in SAVING:
            method = vars(kind).get(name)
            if callable(method) and not getattr(method, "__isabstractmethod__", False):
                setattr(kind, name, _report_stage(method))
        restore = vars(kind).get("restore")
        if callable(restore) and list(signature(restore).parameters)[1:2] == ["directory"]:  # the manager's is a step
            kind.restore = _note_folder(restore)  # type: ignore[attr-defined] # the user's class


def _report_stage(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def saving(*args: Any, **kwargs: Any) -> Any:
        recorder = _enter_checkpoint()
        try:
            return method(*args, **kwargs)
        finally:
            if recorder is not None:
                recorder.stage = STEP

    return saving


def _note_folder(restore: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(restore)
    def restoring(self: Any, directory: Any, *args: Any, **kwargs: Any) -> Any:
        restored = restore(self, directory, *args, **kwargs)
        origin.restores(directory)
        return restored

    return restoring


@fenced
def _enter_checkpoint() -> Optional[Recorder]:
    """Return the recorder, now in the checkpoint stage; None where it is no step that saves, but a save within one."""
    recorder = claim.holding()
    if recorder is None or recorder.stage != STEP or threading.current_thread() is not threading.main_thread():
        return None
    recorder.stage, recorder.aside = CHECKPOINT, 0
    return recorder
