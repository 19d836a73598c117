"""Hurts a training from outside, and counts its steps; put on PYTHONPATH, no script is edited for it.

GALLERY_INJECTIONS names a folder. A file `oom` in it makes the next step raise what the framework raises when a card is
out of memory; a file `nan` makes all weights NaN, once. Either is taken away by the first process that acts on it.
Each step is a line in `steps`: attempt, rank, Unix time; after it the process rests for GALLERY_REST_S seconds, so that
a busy machine has room for more than one training. GALLERY_STEPS names what a step is: of a torch optimizer, of the one
that steps first, one backward pass, one batch of Keras, or one call of a function `train_step` that flax.nnx compiled.
"""

import os
import sys
from importlib.machinery import PathFinder


class Finder:
    """Finds one module, as Python's own finder does, and hooks it when it has been executed."""

    def __init__(self, hooked, hook):
        self._hooked, self._hook = hooked, hook

    def find_spec(self, name, path=None, target=None):
        """Return the spec of the hooked module."""
        if name != self._hooked:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._hook(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("GALLERY_INJECTIONS") and os.environ.get("GALLERY_STEPS") != "unseen":
    from step_hooks import HOOKS

    sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder(*HOOKS[os.environ.get("GALLERY_STEPS", "optimizer")]))
    if os.environ.get("GALLERY_STOP_AT"):
        import stop_hooks

        sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder("torch", stop_hooks.hook))
