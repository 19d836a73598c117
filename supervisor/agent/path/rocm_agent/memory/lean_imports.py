"""Has an interpreter import some packages only once something of them is used, though programs import them at once.

Frameworks import what is installed, a training uses little of it: transformers takes one class for tensors of several
GPUs and has it import all of sympy, one function of scipy for the loss of another network, one of sklearn for a way
to generate text. Here such a module is there at once, with its spec, file and path, but its code has not run. A class
or function that is taken of it is a `Deferred`, which has the package executed when it is called, looked into, put in
a table or derived from; of a class whose package has not run there are no instances. Anything else that is asked of
such a module executes its package, in the same module objects, and whoever took a class or function gets the real one.

A probed command is loaded so; one that fails is probed with all imports as they are (`loaded_probe.py` of the runner).
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
from importlib import _bootstrap  # type: ignore[attr-defined]  # the locks that imports themselves take
from importlib.machinery import ModuleSpec, PathFinder
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import lean_torch
from .definitions import Source

PACKAGES = (
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.fx.experimental.symbolic_shapes",
    "torch.export torch._export",
    "torch.utils.tensorboard",
    "transformers.distributed.tensor_parallel transformers.distributed.expert_parallel "
    "transformers.distributed.sharding_utils",
    "scipy",
    "sklearn",
    "sympy",
    "pandas",
    "polars",
    "matplotlib",
    "onnx",
    "tensorboard",
    "tensorflow",
)
INDEXING = "torch._dynamo._trace_wrapped_higher_order_op"
"""A module for masks that runs without the compiler, of whose package it is."""
WRAPPER = "OptimizedModule"
"""The compiler's class of compiled modules: of those there are none before its import."""
OF_TYPES = frozenset(
    {"__parameters__", "__typing_subst__", "__typing_prepare_subst__", "__typing_unpacked_tuple_args__"}
    | {"__typing_is_unpacked_typevartuple__", "__unpacked__", "__origin__", "__args__"}
)
"""What annotations ask of what is no class, and a class does not have."""
REPLACES = re.compile(r"sys\.modules\[__name__\]\s*=|sys\.modules\[__name__\]\.__class__")
"""In the source of a module that puts another in its place, which those that have imported it would not have."""
OWN = frozenset(
    {"__name__", "__spec__", "__loader__", "__package__", "__path__", "__file__", "__cached__", "__class__"}
    | {"__setattr__", "__repr__"}
)
"""What a module has before its code has run."""


class Package:
    """A package whose code has not run, with those of its modules that were imported, in that order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits = True
        """Whether its code has not begun to run."""
        self._modules: List[Late] = []
        self._deferred: Dict[Tuple[str, str], Deferred] = {}

    def add(self, module: Late) -> None:
        """Have a module executed with the package; parents come first."""
        self._modules.append(module)

    def run(self) -> None:
        """Execute all modules that were imported; another thread that asks meanwhile waits as for an import."""
        with _bootstrap._ModuleLockManager(self.name):
            if not self.waits:
                return
            self.waits = False
            for module in list(self._modules):
                execute(module)
            self._hand_out()

    def defer(self, module: str, name: str, home: str) -> Deferred:
        """Return what stands for a class or function that is taken of a module; `home` is the one that defines it."""
        key = module, name
        if key not in self._deferred:
            self._deferred[key] = Deferred(self, module, name, home)
        return self._deferred[key]

    def _hand_out(self) -> None:
        """Put each real class and function where modules have taken what stands for it."""
        for deferred in self._deferred.values():
            real = vars(sys.modules[deferred._place]).get(deferred._name, MISSING)
            object.__setattr__(deferred, "_real", real)
        for module in list(sys.modules.values()):
            names = object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
            taken = [(name, value) for name, value in list(names.items()) if type(value) is Deferred]
            names.update({name: value._real for name, value in taken if value._real is not MISSING})


class Compiler(Package):
    """That of torch, which `lean_torch` has wait."""

    @property
    def waits(self) -> bool:
        """Whether it is not imported."""
        return isinstance(sys.modules.get(self.name), lean_torch.Later)

    @waits.setter
    def waits(self, value: bool) -> None:
        """Leave that to `lean_torch`."""

    def run(self) -> None:
        """Import it."""
        lean_torch.bring(lean_torch.COMPILER)


MISSING = object()


class Deferred:
    """A class or function whose package runs once it is used."""

    __slots__ = ("_home", "_name", "_package", "_place", "_real")

    def __init__(self, package: Package, place: str, name: str, home: str) -> None:
        for slot, value in zip(Deferred.__slots__, (home, name, package, place, MISSING)):
            object.__setattr__(self, slot, value)

    def bring(self) -> Any:
        """Return the class or function itself."""
        if self._real is MISSING:
            self._package.run()
            object.__setattr__(self, "_real", getattr(sys.modules[self._place], self._name))
        return self._real

    __module__ = property(lambda self: self._home or self.bring().__module__)  # type: ignore[assignment]  # as that of a class or function
    __name__ = property(lambda self: self._name)
    __doc__ = property(lambda self: self.bring().__doc__)  # type: ignore[assignment]  # the same
    __signature__ = property(lambda self: inspect.signature(self.bring()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.bring()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in OF_TYPES:
            raise AttributeError(name)
        return self._name if name == "__qualname__" else getattr(self.bring(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.bring(), name, value)

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        real = self.bring()
        return real.__get__(instance, kind) if hasattr(real, "__get__") else real

    def __instancecheck__(self, instance: Any) -> bool:
        return not self._package.waits and isinstance(instance, self.bring())

    def __subclasscheck__(self, kind: Any) -> bool:
        return not self._package.waits and issubclass(kind, self.bring())

    def __mro_entries__(self, bases: Any) -> Tuple[Any, ...]:
        return (self.bring(),)

    def __hash__(self) -> int:
        return id(self) if _is_asked_by_typing() else hash(self.bring())

    def __eq__(self, other: object) -> bool:
        if self is other or _is_asked_by_typing():
            return self is other
        return bool(self.bring() == (other.bring() if isinstance(other, Deferred) else other))

    def __or__(self, other: Any) -> Any:
        return Union[self, other]

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]

    def __getitem__(self, key: Any) -> Any:
        return self.bring()[key]

    def __repr__(self) -> str:
        return repr(self.bring())

    def __copy__(self) -> Any:
        return self.bring()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.bring()

    def __reduce__(self) -> Tuple[Any, ...]:
        return resolve_name, ("%s:%s" % (self._place, self._name),)


def _is_asked_by_typing() -> bool:
    """Whether an annotation is made, which nothing looks into."""
    return sys._getframe(2).f_globals.get("__name__") == "typing"


class Late(ModuleType):
    """A module whose code has not run."""

    def __getattribute__(self, name: str) -> Any:
        """Return what it has; what stands for a class or function; else what it has once its package has run."""
        own = object.__getattribute__(self, "__dict__")
        if name in OWN:
            return object.__getattribute__(self, name)
        if name in own:
            return own[name]
        spec = own["__spec__"]
        package = spec.loader_state
        if package is not None and package.waits:
            found = Source.of(spec.name, spec.origin)
            if name.startswith("__") and name not in found.text and name != "__dict__":
                raise AttributeError("module %r has no attribute %r" % (spec.name, name))
            home = found.find_home(name)
            if home is not None:
                return package.defer(spec.name, name, home)
        execute(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Have a submodule bound, as the import of it does; whatever else is set is set in what has run."""
        own = object.__getattribute__(self, "__dict__")
        is_import = name.startswith("__") or getattr(value, "__name__", "") == "%s.%s" % (own["__name__"], name)
        if not is_import:
            execute(self)
        ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        execute(self)
        ModuleType.__delattr__(self, name)


def execute(module: ModuleType) -> None:
    """Run the code of a module, after its package's, unless it runs or has run."""
    spec = object.__getattribute__(module, "__dict__")["__spec__"]
    if spec.loader_state is not None:
        spec.loader_state.run()
    if object.__getattribute__(module, "__class__") is not Late:
        return
    spec.loader_state = None
    object.__setattr__(module, "__class__", ModuleType)
    spec._initializing = True
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    finally:
        spec._initializing = False


class Loader:
    """Gives a module that has not run in place of one that is imported."""

    def __init__(self, loader: Any, package: Package) -> None:
        self._loader, self._package = loader, package

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, which keeps its place when it is run."""
        return Late(spec.name)

    def exec_module(self, module: Any) -> None:
        """Have it run with its package."""
        own = object.__getattribute__(module, "__dict__")
        spec = own["__spec__"]
        own["__loader__"] = spec.loader = self._loader
        spec.loader_state = self._package
        self._package.add(module)


def keep_imported(name: str) -> None:
    """Have an import that is under way give the module that has been imported since it began, and not run it again."""
    module = sys.modules[name]
    loader: Any = module.__spec__.loader if module.__spec__ is not None else None

    def exec_module(_: ModuleType) -> None:
        del loader.create_module, loader.exec_module

    loader.create_module, loader.exec_module = lambda _: module, exec_module


class LeanImports:
    """Finds the modules of packages that have not run."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages: Dict[str, Package] = {}
        for names in packages:
            self.add(Package(names.split()[0]), *names.split())

    def add(self, package: Package, *names: str) -> Package:
        """Have a further package wait, of several names maybe, and return it."""
        self._packages.update(dict.fromkeys(names or (package.name,), package))
        return package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Return the spec that other finders give, with another loader, where it is of a package that waits."""
        package = self._find_package(name)
        if package is None or not package.waits or (isinstance(package, Compiler) and name == package.name):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is None:
                continue
            if isinstance(package, Compiler) or not (spec.origin or "").endswith(".py"):
                package.run()
                if name in sys.modules:
                    keep_imported(name)
            elif not REPLACES.search(Source.of(name, spec.origin).text):
                spec.loader = Loader(spec.loader, package)
            return spec
        return None

    def _find_package(self, name: str) -> Optional[Package]:
        while name:
            if name in self._packages:
                return self._packages[name]
            name = name.rpartition(".")[0]
        return None


def leave_compiler(torch: Any) -> None:
    """Have wait what is taken of the compiler by many that never compile; it is not looked into for that."""
    home = sys.modules.get(lean_torch.COMPILER[0])
    finder = next((finder for finder in sys.meta_path if isinstance(finder, LeanImports)), None)
    if finder is None or not isinstance(home, lean_torch.Later):
        return
    compiler, frames = Compiler(home.__name__), lean_torch.Later(home.__name__ + ".eval_frame", lean_torch.COMPILER)
    wrapper = Deferred(compiler, home.__name__, WRAPPER, frames.__name__)
    vars(frames)[WRAPPER] = wrapper
    folders = [os.path.join(torch.__path__[0], "_dynamo")]
    vars(home).update({WRAPPER: wrapper, "eval_frame": frames, "__path__": folders})
    spec = PathFinder.find_spec(INDEXING, folders)
    if spec is not None and INDEXING not in sys.modules:
        spec.loader = Loader(spec.loader, finder.add(Package(INDEXING)))  # type: ignore[assignment]  # it is a loader
        sys.modules[INDEXING] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[INDEXING])
    finder.add(compiler)


def begin(packages: Sequence[str] = PACKAGES) -> None:
    """Begin, for what is not imported yet."""
    if not any(isinstance(finder, LeanImports) for finder in sys.meta_path):
        sys.meta_path.insert(0, LeanImports(packages))  # type: ignore[arg-type]  # it has what a finder needs
