"""Starts the agent in one Python process; a program that trains nothing pays for nothing that a training needs."""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os
import sys

from . import claim, events, exceptions, finder, stacks
from .fence import fenced
from .layout import ENV_CONV2D

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import List


def start(folder: str) -> None:
    """Begin to work for the attempt in `folder`; what fails is reported, and the rest begins nevertheless."""
    claim.begin(folder)
    events.begin(folder, claim.rank)
    steps = [
        lambda: stacks.begin(folder),
        exceptions.begin,
        lambda: finder.install(
            {
                "torch": _torch_imported,
                "torch._dynamo.callback": _compiler_imported,
                "ultralytics.engine.trainer": _trainer_imported,
                "ultralytics.engine.validator": _validator_imported,
            }
        ),
        lambda: os.register_at_fork(after_in_child=_forked),
    ]
    for step in steps:
        fenced(step)()
    fenced(_announce)()


def _announce() -> None:
    if not _is_helper():
        events.write("alive", python=sys.executable, argv=_command_line())


def _forked() -> None:
    fenced(claim.fork)()
    fenced(stacks.fork)()


def _torch_imported(torch: ModuleType) -> None:
    from . import torch_hook

    fenced(torch_hook.install)(torch)
    algorithm = os.environ.get(ENV_CONV2D, "")
    if algorithm not in {"", "off"}:
        from . import conv2d

        conv2d.patch(algorithm)
        _avoid_miopen(torch)
        if not _is_helper():
            events.write("patched", conv2d=algorithm, torch=str(torch.__version__))


def _compiler_imported(module: ModuleType) -> None:
    from . import torch_hook

    torch_hook.watch_compiler(module)


def _avoid_miopen(torch: ModuleType) -> None:
    """Keep the rest of a patched training from MIOpen: on ROCm, BatchNorm calls it too, and hangs just as well."""
    if getattr(torch.version, "hip", None) is not None:
        torch.backends.cudnn.enabled = False


def _trainer_imported(module: ModuleType) -> None:
    from . import ultralytics_hook, ultralytics_resume

    ultralytics_hook.install(module)
    ultralytics_resume.install(module)


def _validator_imported(module: ModuleType) -> None:
    from . import ultralytics_hook

    ultralytics_hook.install_validator(module)


def _command_line() -> List[str]:
    """Return the words this interpreter was started with; before Python 3.10 `sys` does not know them."""
    if hasattr(sys, "orig_argv"):
        return list(sys.orig_argv)
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def _is_helper() -> bool:
    """Whether multiprocessing started this interpreter (a spawned worker, the fork server, the resource tracker)."""
    words = _command_line()
    return "--multiprocessing-fork" in words or any(word.startswith("from multiprocessing.") for word in words)
