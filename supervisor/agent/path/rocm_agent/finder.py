"""Calls a hook when a module has been imported. The module keeps its own spec, loader and source."""

from __future__ import annotations

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
"""What takes long to import, and is worth importing before it is needed."""

_begun = []
_environment = None


def begun() -> List[str]:
    """Return the ROOTS that this process imported, in the order in which it began to.

    Not those before which the program changed its environment: what they read of it is the program's doing.
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
    """Whether a module is being imported now, so that what it imports and changes is its own doing."""
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


class Finder:
    """A finder that finds nothing itself: it asks the others and has the loader call the hook once it is done."""

    def __init__(self, hooks: Dict[str, Hook]) -> None:
        self._hooks = hooks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Return the spec that the other finders give for a hooked module, None for every other."""
        if name in ROOTS and name not in _begun and (_environment == os.environ or any(map(_is_importing, _begun))):
            _begun.append(name)
        hook = self._hooks.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                _call_after_import(spec, hook)
                return spec
        return None


def _call_after_import(spec: ModuleSpec, hook: Hook) -> None:
    """Have this one loader object call the hook; it is made for this import, and is its old self afterwards."""
    loader = spec.loader
    try:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            fenced(hook)(module)

        loader.exec_module = exec_module
    except Exception as error:
        failed("finder." + spec.name, error)
