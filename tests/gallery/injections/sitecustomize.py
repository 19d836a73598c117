"""Hurts a training from outside, and counts its optimizer steps; put on PYTHONPATH, no script is edited for it.

GALLERY_INJECTIONS names a folder. A file `oom` in it makes the next optimizer step raise what torch raises when a card
is out of memory; a file `nan` makes all weights NaN, once. Either is taken away by the first process that acts on it.
Each step of an optimizer is a line in `steps`: attempt, rank, Unix time; after it the process rests for GALLERY_REST_S
seconds, so that a busy machine has room for more than one training.
"""

import os
import sys
import time
from importlib.machinery import PathFinder

FOLDER = os.environ.get("GALLERY_INJECTIONS")
HOOKED = "torch.optim.optimizer"
REST_S = float(os.environ.get("GALLERY_REST_S", "0"))
RANK = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
LINE = " ".join((os.environ.get("ROCM_SUPERVISOR_ATTEMPT", "1"), RANK))


def take(name):
    """Whether this process is the one that finds the injection."""
    try:
        os.unlink(os.path.join(FOLDER, name))
    except FileNotFoundError:
        return False
    return True


class Hurt:
    """What is done before and after each step of any optimizer."""

    def __init__(self):
        self.log = os.open(os.path.join(FOLDER, "steps"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def before(self, optimizer, args, kwargs):
        """Raise where that was asked for."""
        import torch

        if take("oom"):
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 5.98 GiB of which "
                "1.10 GiB is free."
            )

    def after(self, optimizer, args, kwargs):
        """Write down the step, poison where that was asked for, and rest."""
        if take("nan"):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.data.fill_(float("nan"))
        os.write(self.log, ("%s %r\n" % (LINE, time.time())).encode())
        time.sleep(REST_S)


class Finder:
    """Finds one module, as Python's own finder does, and hooks it when it has been executed."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of the hooked module."""
        if name != HOOKED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            hurt = Hurt()
            module.register_optimizer_step_pre_hook(hurt.before)
            module.register_optimizer_step_post_hook(hurt.after)

        spec.loader.exec_module = exec_module
        return spec


if FOLDER:
    sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder())
