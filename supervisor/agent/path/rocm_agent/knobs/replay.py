"""Replays of a training's own newest batches: its model is called once more as the training has called it.

While a tune is under way the outermost calls of modules are kept with their arguments. A replay touches no gradient, no
running statistics and no random state of the training.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from functools import wraps
from typing import Any, Callable, Container, Iterator, List, Optional, Sequence, Tuple

CALLS = 8
ROUNDING, TF32, BFLOAT16 = 4e-6, 5e-4, 4e-3
"""Relative size of rounding in another order, to 11 bits and to 8: inputs and weights shaken by it show its effect.

Gates that flip make gradients of a deep net far more sensitive than its results: there is no bound for all nets.
"""
COUNTING_DIMENSIONS = 2
"""At most, of a tensor that numbers something."""


class Calls:
    """The newest outermost calls of the training's modules."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kept: List[Tuple[Any, Any, Any, Any, bool]] = []
        self._depth = 0
        self._original: Any = None
        self._known: List[Any] = []
        self.trusted = False
        """Whether the settings that are put in force were proven before: nothing is replayed then."""
        self.measured: Any = None
        """What a proof has measured of the settings in force; None where anything has changed since."""

    def keep(self) -> None:
        """Begin to keep calls; every module's call costs a little until `stop`."""
        if self._original is not None:
            return
        original = self._original = self._torch.nn.Module.__call__
        # With checkpointing the backward pass calls the parts of a model again; -1: no pass is under way.
        graph_task = getattr(self._torch._C, "_current_graph_task_id", lambda: -1)

        def is_in_backward() -> bool:
            return graph_task() != -1

        @wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and module.training and self._torch.is_grad_enabled() and not is_in_backward():
                self._note(module, args, kwargs)
            self._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1

        self._torch.nn.Module.__call__ = call

    def stop(self) -> None:
        """Keep no more calls, and drop those kept."""
        if self._original is not None:
            self._torch.nn.Module.__call__ = self._original
        if self._kept:
            self._known = [weakref.ref(module) for module in self.models()]
        self._original, self._kept, self._depth = None, [], 0
        self.measured = None

    def why_not(self) -> Optional[str]:
        """Return why nothing can be replayed."""
        if not self._kept and not (self.trusted and self.models()):
            return "no call of its model was seen"
        for module in self.models():
            if is_compiled(module):
                return "its model is compiled"
            if type(module).__name__ in {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}:
                return "its model is spread over several processes or GPUs"
        return None

    @property
    def casting(self) -> bool:
        """Whether a call was made under autocast."""
        return any(casts for *_, casts in self._kept)

    @property
    def rounding(self) -> float:
        """The relative size of rounding in the precision that the models compute in now."""
        models = self.models()
        if self.casting or any("__call__" in vars(type(model)) for model in models):
            return BFLOAT16
        on_gpu = any(param.is_cuda for model in models for param in model.parameters())
        return TF32 if on_gpu and _has_tf32(self._torch) else ROUNDING

    def models(self) -> List[Any]:
        """Return the modules that were called, of the calls kept or of those kept last."""
        if not self._kept:
            return [module for module in (held() for held in self._known) if module is not None]
        return list({id(module): module for module, *_ in self._kept}.values())

    def calls(self) -> List[Tuple[Any, Any, Any, Any]]:
        """Return the calls kept: the module, its arguments, those by name, and the precision they were made in."""
        return [(module, args, kwargs, cast) for module, args, kwargs, cast, _ in self._kept]

    @contextmanager
    def replaying(self, params: List[Any], *, drops: bool = False) -> Iterator[None]:
        """Leave no trace of calls made meanwhile in random state, running statistics or the calls kept.

        `drops`: layers of dropout drop as in a step.
        """
        torch = self._torch
        devices = sorted({param.device.index for param in params if param.is_cuda})
        buffers = [buffer for model in self.models() for buffer in model.buffers()]
        kept = [buffer.detach().clone() for buffer in buffers]
        self._depth += 1
        with torch.random.fork_rng(devices), _without_dropout([] if drops else self.models()):
            torch.manual_seed(0)
            try:
                yield
            finally:
                self._depth -= 1
                with torch.no_grad():
                    for buffer, value in zip(buffers, kept):
                        buffer.copy_(value)

    def run(
        self, shaken: float = 0.0, direction: int = 0, only: Optional[Container[int]] = None
    ) -> Iterator[Tuple[int, Any]]:
        """Repeat calls and yield the number and the result of each; `shaken` is by how much its inputs are off."""
        for number, (module, args, kwargs, cast, _) in enumerate(self._kept):
            if only is not None and number not in only:
                continue
            self._torch.manual_seed(direction)
            given = _shaken(self._torch, (args, kwargs), shaken) if shaken else (args, kwargs)
            self._torch.manual_seed(number)  # what the model draws itself is the same in every run
            with cast():
                yield number, module(*given[0], **given[1])

    def _note(self, module: Any, args: Any, kwargs: Any) -> None:
        # A module whose weights are no part of the training, as a criterion has none, is called after the model.
        if next(iter(module.parameters()), None) is None:
            return
        casts = self._torch.is_autocast_enabled() or self._torch.is_autocast_cpu_enabled()
        self.measured = None
        self._kept.append((module, _copied(args), _copied(kwargs), _casting(self._torch), casts))
        del self._kept[:-CALLS]


def _has_tf32(torch: Any) -> bool:
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        return bool(matmul.allow_tf32 or conv.allow_tf32)
    except RuntimeError:  # set by the newer API alone
        return "tf32" in {matmul.fp32_precision, conv.conv.fp32_precision}


@contextmanager
def shake_weights(torch: Any, params: List[Any], size: float, direction: int = 1) -> Iterator[None]:
    """Have weights off by a relative size meanwhile."""
    kept = [param.detach().clone() for param in params]
    devices = sorted({param.device.index for param in params if param.is_cuda})
    with torch.random.fork_rng(devices), torch.no_grad():
        torch.manual_seed(direction)
        for param in params:
            param.mul_(1 + size * torch.randn_like(param))
    try:
        yield
    finally:
        with torch.no_grad():
            for param, value in zip(params, kept):
                param.copy_(value)


@contextmanager
def fill_zeros(torch: Any, params: List[Any]) -> Iterator[None]:
    """Have those weights that are all zeros be such numbers as others begin with meanwhile.

    What comes before a head or within a branch that begins with zeros has no gradients, and what comes after it sees
    nothing of it: neither shows what is wrong there, as the next steps would.
    """
    zeros = [param for param in params if not param.any()]
    devices = sorted({param.device.index for param in zeros if param.is_cuda})
    with torch.random.fork_rng(devices), torch.no_grad():
        torch.manual_seed(0)
        for param in zeros:
            param.normal_(0, param[0].numel() ** -0.5)
    try:
        yield
    finally:
        with torch.no_grad():
            for param in zeros:
                param.zero_()


@contextmanager
def _without_dropout(models: List[Any]) -> Iterator[None]:
    """Drop nothing meanwhile: another precision, layout or kernel draws other random numbers on a GPU."""
    modules = (module for model in models for module in model.modules())
    kept = [(module, name, getattr(module, name)) for module in modules for name in _list_dropping_rates(module)]
    for module, name, _ in kept:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in kept:
            setattr(module, name, rate)


def _list_dropping_rates(module: Any) -> List[str]:
    """Return the names of the rates by which a module drops numbers, paths or layers.

    Layers that do nothing else call it `p`; attention that drops by itself has a number whose name says so, as
    `dropout` of a T5 and of nanoGPT, `attention_dropout` of a Llama, `drop_prob` of timm's paths.
    """
    kind = type(module).__name__
    drops = "Drop" in kind or kind == "StochasticDepth"
    rates = [name for name, value in vars(module).items() if type(value) is float and 0 < value <= 1]
    return [name for name in rates if "drop" in name.lower() or (drops and name == "p")]


def list_open(torch: Any, models: List[Any], closed: Sequence[Any] = ()) -> List[Any]:
    """Return the modules inside some models whose gradients are seen; a compiled graph shows none of its own."""
    compiled = [module for model in models for module in model.modules() if is_compiled(module)]
    hidden = {id(part) for module in [*compiled, *closed] for part in module.modules()}
    inside = (module for model in models for module in model.modules() if module is not model)
    scripted = torch.jit.ScriptModule
    return [module for module in inside if id(module) not in hidden and not isinstance(module, scripted)]


def is_compiled(module: Any) -> bool:
    """Whether calls of a module are compiled graphs."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _casting(torch: Any) -> Callable[[], Any]:
    """Return a context as autocast is at present."""
    kind = "cuda" if torch.is_autocast_enabled() else "cpu"
    if kind == "cuda":
        dtype = torch.get_autocast_gpu_dtype()
        return lambda: torch.autocast("cuda", dtype=dtype)
    on, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    return lambda: torch.autocast("cpu", dtype=dtype, enabled=on)


def _copied(value: Any) -> Any:
    """Return arguments with every tensor copied, so that a training that reuses its buffers changes none."""
    if hasattr(value, "detach"):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_copied(item) for item in value)
    return value


def _shaken(torch: Any, value: Any, size: float) -> Any:
    """Return arguments with every tensor of real numbers off by a relative size."""
    if hasattr(value, "is_floating_point"):
        shakes = value.is_floating_point() and not _counts(value)
        return value * (1 + size * torch.randn_like(value)) if shakes else value
    if isinstance(value, dict):
        return {name: _shaken(torch, item, size) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_shaken(torch, item, size) for item in value)
    return value


def _counts(value: Any) -> bool:
    """Whether a tensor may hold numbers of something: a YOLO has the kind of each box, and its picture, as floats."""
    return value.dim() <= COUNTING_DIMENSIONS and bool((value == value.round()).all())
