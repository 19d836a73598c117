"""torch.compile in place: the largest modules whose inputs keep their shapes are called as compiled graphs.

A call of any other shape, in evaluation, or that the compiler fails on is made as the script has it, so that nothing is
compiled in the middle of a training. State dicts, copies and pickles of a model do not hold what was compiled.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Callable, Dict, List, Optional, Tuple

from rocm_agent.fence import failed

from . import Refused, list_params, proofs, refuse, replay, reverted_on_error

BACKEND = "inductor"
REGIONS_MAX = 64
"""Modules that are compiled, each for itself: more of them would take minutes."""
COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx")
"""Packages whose errors are the compiler's and not the model's."""

Signature = Tuple[Any, ...]


class Compiled:
    """Graphs in place of a training's own calls of its modules."""

    def __init__(self, torch: Any, optimizer: Any, calls: replay.Calls, backend: str = BACKEND) -> None:
        self._torch, self._optimizer, self._calls, self._backend = torch, optimizer, calls, backend
        self._regions: List[_Region] = []
        """Compiled once: to have them called again takes no time."""
        self._applied = False

    def why_not(self) -> Optional[str]:
        """Return why nothing can be compiled here."""
        torch = self._torch
        if not hasattr(torch.nn.Module, "compile"):
            return "torch %s compiles no module in place" % torch.__version__
        kinds = {param.device.type for param in list_params(self._optimizer)}
        if kinds == {"cuda"}:
            if find_spec("triton") is None:
                return "Triton, which compiles for GPUs, is not installed"
        elif kinds != {"cpu"}:
            return "its weights lie on %s" % (", ".join(sorted(kinds)) or "no device")
        if shutil.which(os.environ.get("CXX", "c++")) is None:
            return "no C++ compiler was found"
        if _is_patched():
            return "its convolutions are replaced by the Conv2d patch"
        return None

    @property
    def on(self) -> bool:
        """Whether a part of its models is compiled."""
        return any(replay.is_compiled(module) for model in self._calls.models() for module in model.modules())

    def apply(self, value: Any) -> None:
        """Compile, if results and gradients of the training's own batches are what rounding explains."""
        if self._applied:
            return
        refuse(self.why_not() or (None if self._calls.trusted and self._regions else self._calls.why_not()))
        if str(value) != "default":
            raise Refused("%s is no mode of the compiler that is tried" % value)
        if not self._regions:
            self._regions = self._find_regions()
        closed = [region.module for region in self._regions]
        proof = proofs.Proof(self._torch, self._calls, list_params(self._optimizer), self._calls.rounding, closed)
        with reverted_on_error(self._forget_regions):
            for region in self._regions:
                region.enter()
            self._applied = True
            proof.compare()
            self._compile_as_in_steps()
            broken = next((region.problem for region in self._regions if region.problem is not None), None)
            if broken is not None:
                raise Refused("the compiler fails: %s" % broken)

    def _compile_as_in_steps(self) -> None:
        """Call it once with dropout, which the proof left out: what is compiled for that is not to delay a step."""
        params = [param for param in list_params(self._optimizer) if param.requires_grad]
        with self._calls.replaying(params, drops=True):
            for _, result in self._calls.run():
                loss = proofs.sum_squares(result)
                if loss is not None:
                    self._torch.autograd.grad(loss, params, allow_unused=True)
                return

    def revert(self) -> None:
        """Have every module called as its script has it."""
        for region in self._regions:
            region.leave()
        self._applied = False

    def _forget_regions(self) -> None:
        self.revert()
        self._regions = []

    def _find_regions(self) -> List[_Region]:
        seen = self._see_calls()
        chosen: List[_Region] = []
        for model in self._calls.models():
            if any(replay.is_compiled(module) for module in model.modules()):
                raise Refused("parts of its model are compiled")
            _choose(self._torch, self._backend, model, seen, chosen)
        if not chosen:
            raise Refused("no module with weights is called with the same shapes in each step")
        if len(chosen) > REGIONS_MAX:
            raise Refused("%d modules keep their shapes, too many to compile each for itself" % len(chosen))
        return chosen

    def _see_calls(self) -> Dict[int, List[Signature]]:
        """Return with what each module of the models is called in the calls that are kept."""
        seen: Dict[int, List[Signature]] = {}

        def note(module: Any, args: Any, kwargs: Any) -> None:
            seen.setdefault(id(module), []).append(_signature((args, kwargs)))

        hooks = [
            module.register_forward_pre_hook(note, with_kwargs=True)
            for model in self._calls.models()
            for module in model.modules()
        ]
        try:
            with self._calls.replaying(list_params(self._optimizer)), self._torch.no_grad():
                for _ in self._calls.run():
                    pass
        finally:
            for hook in hooks:
                hook.remove()
        return seen


class _Region:
    """One module, and the graph that is called in its place."""

    def __init__(self, torch: Any, backend: str, module: Any, signature: Signature) -> None:
        self._torch, self.module, self._signature = torch, module, signature
        self._compiled = torch.compile(_in_own_code(module._call_impl), backend=backend, dynamic=False)
        self.problem: Optional[str] = None
        """What the compiler failed with; the module is called as its script has it from then on."""

    def enter(self) -> None:
        """Have the graph called in place of the module."""
        self.module._compiled_call_impl = self._make_call()

    def leave(self) -> None:
        """Have the module called as its script has it."""
        vars(self.module).pop("_compiled_call_impl", None)

    def _make_call(self) -> Callable[..., Any]:
        torch, module, signature, compiled = self._torch, self.module, self._signature, self._compiled

        def call(*args: Any, **kwargs: Any) -> Any:
            fits = module.training and torch.is_grad_enabled() and _signature((args, kwargs)) == signature
            if not fits or self.problem is not None:
                return module._call_impl(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except Exception as error:
                if not type(error).__module__.startswith(COMPILERS):
                    raise
                self.problem = (str(error).splitlines() or [type(error).__name__])[0][:200]
                failed("tuning.compile", error)
                return module._call_impl(*args, **kwargs)

        return call


def _in_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a code object that no other one has: the compiler keeps few graphs for each of these."""

    def call_region(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = call_region.__code__.replace()
    return FunctionType(code, call_region.__globals__, call_region.__name__, None, call_region.__closure__)


def _choose(torch: Any, backend: str, module: Any, seen: Dict[int, List[Signature]], chosen: List[_Region]) -> None:
    """Add a module that is called with the same shapes each time, else those of its parts that are."""
    signatures = seen.get(id(module), [])
    weighs = next(iter(module.parameters()), None) is not None
    if weighs and signatures and all(other == signatures[0] for other in signatures):
        chosen.append(_Region(torch, backend, module, signatures[0]))
        return
    for part in module.children():
        _choose(torch, backend, part, seen, chosen)


def _signature(value: Any) -> Signature:
    """Return the shapes, types and devices of the tensors in a call's arguments, and the values of all else."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return (tuple(value.shape), value.dtype, str(getattr(value, "device", "")))
    if isinstance(value, dict):
        return tuple((name, _signature(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_signature(item) for item in value)
    return (value,) if isinstance(value, (str, int, float, bool, type(None))) else (type(value),)


def _is_patched() -> bool:
    patch = sys.modules.get("rocm_agent.conv2d.patch")
    return patch is not None and patch._algorithm is not None
