"""Stops a training by SIGSTOP, from inside, when it comes to a stage; sitecustomize.py puts it into a training.

GALLERY_STOP_AT names the stage: `import` of torch, `data` (the first loader), `first` and `step` (the first and the
twentieth step of an optimizer), `validation` (a model that has trained is set to evaluate), `save` (torch.save after a
step), `end` (the interpreter's exit). It happens once, in the first attempt; the time is written to `stopped`.
"""

from __future__ import annotations

# ruff: noqa: PLC0415 - imported where it is needed: torch is being imported
import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ.get("GALLERY_INJECTIONS", ""))
STAGE = os.environ.get("GALLERY_STOP_AT", "")
LATER_STEP = 20


class Stop:
    """Stops this process once."""

    def __init__(self) -> None:
        self.steps = 0

    def at(self, stage: str) -> None:
        """Stop where the stage is the one that was asked for."""
        if stage != STAGE or os.environ.get("ROCM_SUPERVISOR_ATTEMPT", "1") != "1":
            return
        try:
            mark = os.open(FOLDER / "stopped", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return
        now = time.time()  # noqa: TID251 - compared with the record's
        os.write(mark, f"{os.getpid()} {now}\n".encode())
        os.close(mark)
        os.kill(os.getpid(), signal.SIGSTOP)

    def before(self, owner: Any, name: str, do: Callable[[Any], None]) -> None:
        """Have `do` called with the first argument before a function of `owner` is."""
        function = getattr(owner, name)

        def called(*args: Any, **named: Any) -> Any:
            do(args[0] if args else None)
            return function(*args, **named)

        setattr(owner, name, called)


def hook(torch: ModuleType) -> None:
    """Hook what begins the stages of a torch training."""
    stop = Stop()
    stop.at("import")
    import torch.optim.optimizer as optimizers
    import torch.utils.data as loaders

    def count(_: Any) -> None:
        stop.steps += 1
        stop.at("first" if stop.steps == 1 else "step" if stop.steps == LATER_STEP else "")

    def when_trained(stage: str) -> Callable[[Any], None]:
        return lambda _: stop.at(stage) if stop.steps else None

    stop.before(loaders.DataLoader, "__iter__", lambda _: stop.at("data"))
    optimizers.register_optimizer_step_pre_hook(lambda *_: count(None))
    stop.before(torch.nn.Module, "eval", when_trained("validation"))
    stop.before(torch, "save", when_trained("save"))
    if sys.argv[0] != "-c":
        atexit.register(lambda: when_trained("end")(None))
