"""Has an interpreter import of torch, until it is used, neither the compiler nor the kernels for tensors without data.

Both are Python alone, and half of what torch 2 takes until its first step: torch imports the kernels (for fake tensors,
decompositions and the device `meta`) with itself, and the compiler with the first optimizer, with the first
DistributedDataParallel, or with the setting that `use_deterministic_algorithms` sets, as each YOLO does; used or not.
torch 1.13 has no compiler; its kernels are a seventh of that time. What exports and quantizes models and draws from
distributions is left away as well: a tenth of what remains. Here a module is in the place of each that imports
it once something of it is asked for. What the compiler is to leave alone (`disable`, `graph_break`) is, outside of
compiled code, called as it is. Nothing else of torch is touched.

A probed command is loaded so; one that fails is probed with all of torch. Interpreters of our training environments run
this file when they start (`lean_torch.pth`, Makefile) where TESTS_LEAN_TORCH names it; the marker `whole_torch` keeps
it from a test (tests/conftest.py).
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, List, Optional, Sequence

KERNELS = ("torch._meta_registrations", "torch._decomp", "torch._refs", "torch._prims")
SETTINGS = "torch._inductor.config"
COMPILER = ("torch._dynamo", "torch._dynamo.utils", "torch._inductor", SETTINGS)
"""torchvision takes a function of the second as soon as it is imported."""
QUANTIZED = ("torch.ao", "torch.nn.intrinsic", "torch.nn.qat", "torch.nn.quantizable", "torch.nn.quantized")
APART = (
    *QUANTIZED,
    "torch.distributions",
    "torch.export",
    "torch.hub",
    "torch.masked",
    "torch.onnx",
    "torch.quantization",
)
"""What torch imports with itself, each by its name alone; not every version has or imports each."""
NO_PACKAGES = ("torch._meta_registrations", "torch._dynamo.utils", "torch.hub", SETTINGS)
KEPT = "deterministic"
"""The setting of the compiler that torch sets without using it."""

_allowed: List[Any] = []
"""Functions that the compiler is to allow once it has been imported."""


class Later(ModuleType):
    """A module in the place of another, which is imported with its group when an attribute of it is asked for."""

    def __init__(self, name: str, group: Sequence[str]) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self._group = group

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the module itself, but of what `inspect` asks of every module nothing."""
        if name.startswith("__") and (name != "__path__" or self.__name__ in NO_PACKAGES):
            raise AttributeError(name)
        bring(self._group)
        return getattr(importlib.import_module(self.__name__), name)


class LaterSettings(Later):
    """The compiler's settings: `deterministic` is kept until they are imported, setting any other imports them."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it where it is looked up."""
        present = sys.modules.get(self.__name__)
        if name.startswith("_") or (name == KEPT and present is self):
            super().__setattr__(name, value)
            return
        bring(self._group)
        setattr(importlib.import_module(self.__name__), name, value)


def bring(group: Sequence[str]) -> None:
    """Import the modules of a group, the compiler after the kernels, which it uses."""
    kept: dict[str, Any] = {}
    if group is COMPILER:
        bring(KERNELS)
        for name in APART:  # it looks for their files
            if isinstance(sys.modules.get(name), Later):
                bring((name,))
        kept = vars(sys.modules[SETTINGS]) if isinstance(sys.modules.get(SETTINGS), LaterSettings) else {}
    for name in reversed(group):
        if isinstance(sys.modules.get(name), Later):
            home, _, own = name.rpartition(".")
            if vars(sys.modules[home]).get(own) is sys.modules.pop(name):
                delattr(sys.modules[home], own)
    importlib.import_module(group[0])
    while group is COMPILER and _allowed:
        compiler().allow_in_graph(_allowed.pop(0))
    if KEPT in kept:
        setattr(importlib.import_module(SETTINGS), KEPT, kept.pop(KEPT))


def compiler() -> Any:
    """Return the compiler, None before its import."""
    module = sys.modules[COMPILER[0]]
    return None if isinstance(module, Later) else module


def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:  # noqa: FBT001, FBT002 - torch's signature
    """Return what calls `fn`, in the compiler's way once that has been imported."""
    if compiler() is not None:
        return compiler().disable(fn, recursive, **options)
    if fn is None:
        return lambda given: disable(given, recursive, **options)
    disabled: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not disabled:
            if compiler() is None:
                return fn(*args, **kwargs)
            disabled.append(compiler().disable(fn, recursive, **options))
        return disabled[0](*args, **kwargs)

    return call


def graph_break(*words: Any, **options: Any) -> None:
    """Do nothing where no graph can be in the making."""
    if compiler() is not None:
        compiler().graph_break(*words, **options)


def assume_constant_result(fn: Any) -> Any:
    """Mark a function as the compiler does."""
    fn._dynamo_marked_constant = True
    return fn


def allow_in_graph(fn: Any) -> Any:
    """Have the compiler allow a function once it has been imported."""
    if compiler() is not None:
        return compiler().allow_in_graph(fn)
    _allowed.append(fn)
    return fn


def is_compile_supported(device_type: str) -> Any:
    """Answer as the compiler, which is imported for it."""
    bring(COMPILER)
    return sys.modules[COMPILER[1]].is_compile_supported(device_type)


def get_optimize_ddp_mode() -> Any:
    """Answer as the compiler, of which DistributedDataParallel asks it; to set another way imports it."""
    return "ddp_optimizer" if compiler() is None else sys.modules[COMPILER[1]].get_optimize_ddp_mode()


class LeanFinder:
    """Finds what torch imports apart, and the first of the kernels, which it imports at its very end."""

    def __init__(self) -> None:
        self._left = {*APART, KERNELS[0]}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Answer once for each name, and none after the kernels."""
        if name not in self._left:
            return None
        self._left.remove(name)
        if name == KERNELS[0]:
            sys.meta_path.remove(self)
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # it has what a loader needs

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Put a module in the place of each that is left away."""
        if spec.name in APART:
            apart = Later(spec.name, (spec.name,))
            apart.__path__ = None  # type: ignore[assignment]  # as it is asked for before the import has ended
            return apart
        torch = sys.modules["torch"]
        for name in KERNELS:
            sys.modules[name] = Later(name, KERNELS)
            setattr(torch, name.rpartition(".")[2], sys.modules[name])
        if int(torch.__version__.partition(".")[0]) > 1:
            self._leave_compiler()
        return sys.modules[KERNELS[0]]

    def _leave_compiler(self) -> None:
        for name in COMPILER:
            sys.modules[name] = (LaterSettings if name == SETTINGS else Later)(name, COMPILER)
        first, utils, inductor, settings = (sys.modules[name] for name in COMPILER)
        inductor.config = settings  # type: ignore[attr-defined]  # as that of a package
        first.disable, first.graph_break, first.utils = disable, graph_break, utils
        first.assume_constant_result, first.allow_in_graph = assume_constant_result, allow_in_graph
        # A process group has it forget what it kept, where it has been imported: it keeps nothing yet.
        first.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
        utils.is_compile_supported = is_compile_supported
        utils.get_optimize_ddp_mode = get_optimize_ddp_mode

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""
        vars(module).pop("__path__", None)


def begin() -> None:
    """Begin, where torch is not imported yet and this has not begun."""
    begun = any(type(finder).__name__ == LeanFinder.__name__ for finder in sys.meta_path)
    if not begun and "torch" not in sys.modules:
        sys.meta_path.insert(0, LeanFinder())  # type: ignore[arg-type]  # as above


if __name__ == "lean_torch":
    begin()
