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
"""Packages that take long to import, worth importing before they are needed."""

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
    """Have this loader object call the hook once; it is restored afterwards."""
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
