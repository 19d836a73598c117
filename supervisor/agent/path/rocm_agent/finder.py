"""Calls a hook when a module has been imported. The module keeps its own spec, loader and source."""

from __future__ import annotations

import gc
import os
import sys

from .fence import failed, fenced

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Callable, Dict, List, Optional

    Hook = Callable[[ModuleType], None]


ROOTS = frozenset(
    {"torch", "torchvision", "ultralytics", "ultralytics.models", "ultralytics.engine.trainer"}
    | {"transformers", "transformers.trainer", "lightning", "lightning.pytorch", "pytorch_lightning"}
)
"""Packages that take long to import, worth importing before they are needed."""
LARGE = ROOTS | {"torch._dynamo"}
"""Modules whose import makes so many objects that collecting takes a fifth of it; an optimizer imports the last."""
FROZEN_BY_ITSELF = 2000
"""Python 3.12 counts some hundred immortal objects as frozen; a program that freezes has thousands of objects."""

_begun = []
_environment = None


def begun() -> List[str]:
    """Return the ROOTS that this process imported, in the order in which it began to.

    Packages imported after the program changed its environment are left out: they may have read it.
    """
    return list(_begun)


def install(hooks: Dict[str, Hook]) -> None:
    """Call `hooks[name](module)` after each import of `name`, at once where it is imported already."""
    for name, hook in hooks.items():
        if name in sys.modules:
            fenced(hook)(sys.modules[name])
    global _environment
    _environment = dict(os.environ)
    sys.meta_path.insert(0, Finder(hooks))


def _is_importing(name: str) -> bool:
    """Whether a module is being imported now, so that the imports and changes are its own."""
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


class Finder:
    """A finder that delegates to the others and has the loader call the hook afterwards."""

    def __init__(self, hooks: Dict[str, Hook]) -> None:
        self._hooks = hooks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Return the spec that the other finders give for a hooked module, None for every other."""
        if name in ROOTS and name not in _begun and (_environment == os.environ or any(map(_is_importing, _begun))):
            _begun.append(name)
        hook = self._hooks.get(name)
        if hook is None and name not in LARGE:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                _import_with(spec, hook)
                return spec
        return None


def _import_with(spec: ModuleSpec, hook: Optional[Hook]) -> None:
    """Have this loader object call the hook once; it is restored afterwards."""
    loader = spec.loader
    try:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if spec.name in LARGE:
                _execute_uncollected(execute, module)
            else:
                execute(module)
            if hook is not None:
                fenced(hook)(module)

        loader.exec_module = exec_module
    except Exception as error:
        failed("finder." + spec.name, error)


def _execute_uncollected(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Execute a module while the collector rests: nearly all that an import makes stays, and is passed again and again.

    What it made is then old, so that no collection of young objects passes it. A program that switched the collector
    off, or has frozen objects of its own, keeps both.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        execute(module)
    finally:
        if collects:
            if gc.get_freeze_count() < FROZEN_BY_ITSELF:
                gc.freeze()  # the two move all objects to the oldest generation and look at none
                gc.unfreeze()
            gc.enable()
