"""Reports when torch.compile compiles: the step that it happens in takes longer than others.

That step stays one of compiling to its end: what was made is tuned when it first runs.
"""

from __future__ import annotations

from functools import wraps
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from . import claim
from .fence import fenced
from .layout import COMPILE, STEP

CALLBACKS = "torch._dynamo.callback"


def install(module: ModuleType) -> None:
    """Watch the compiler of torch 2.3 and later; `module` is torch._dynamo.callback."""
    module.callback_handler.register_start_callback(lambda *_: _mark_step())


def install_older(module: ModuleType) -> None:
    """Watch that of torch 2.0 to 2.2, which has no such callbacks; `module` is torch._dynamo.convert_frame."""
    original = getattr(module, "_compile", None)
    if original is None or find_spec(CALLBACKS) is not None:
        return

    @wraps(original)
    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        _mark_step()
        return original(*args, **kwargs)

    module._compile = compile_frame  # type: ignore[attr-defined] # a module of the user's environment


@fenced
def _mark_step() -> None:
    recorder = claim.holding()
    if recorder is not None and recorder.stage == STEP:
        recorder.aside = COMPILE
