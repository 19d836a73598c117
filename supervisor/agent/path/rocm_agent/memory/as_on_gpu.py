"""Has a training on the CPU make the tensors that it would make on a GPU, where torch chooses otherwise by device.

Autocast for "cuda" becomes autocast on the CPU with CUDA's list of operations that are computed in float32; optimizers
work on lists of tensors (foreach); dropout keeps a mask of bytes; attention is computed without its matrix.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

functional = torch.nn.functional
IN_FLOAT32 = frozenset(
    {functional.layer_norm, functional.group_norm, functional.softmax, functional.log_softmax, torch.softmax}
    | {torch.log_softmax, torch.Tensor.softmax, torch.Tensor.log_softmax, functional.cross_entropy}
    | {functional.nll_loss, functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.softplus}
    | {functional.binary_cross_entropy_with_logits, torch.exp, torch.log, torch.pow, torch.rsqrt, torch.sum, torch.norm}
    | {torch.Tensor.exp, torch.Tensor.log, torch.Tensor.pow, torch.Tensor.__pow__, torch.Tensor.rsqrt}
    | {torch.Tensor.sum, torch.Tensor.norm, torch.cumsum, torch.Tensor.cumsum}
)
"""What CUDA's autocast computes in float32 and the CPU's does not ("Autocast Op Reference" of torch)."""
CHECKPOINTS = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant")
"""What computes activations again in torch 2.1 and later, and before."""
HALVES = (torch.float16, torch.bfloat16)


class AsOnGpu(TorchFunctionMode):
    """In force for the rest of the process once installed."""

    def install(self) -> None:
        """Begin."""
        _translate_autocast()
        _make_optimizers_foreach()
        self._hold_while_computed_again()
        self.__enter__()

    def _hold_while_computed_again(self) -> None:
        """Be in force also where checkpointing computes activations again: the backward pass takes every mode away."""
        import torch.utils.checkpoint as home  # noqa: PLC0415 - not every training imports it

        name = next((name for name in CHECKPOINTS if hasattr(home, name)), None)
        if name is None:
            return
        original = getattr(home, name)

        @wraps(original)
        def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self._holding(function), *args, **kwargs)

        setattr(home, name, checkpoint)

    def _holding(self, function: Any) -> Any:
        @wraps(function)
        def computed(*args: Any, **kwargs: Any) -> Any:
            if self in _get_current_function_mode_stack():
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return computed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch as a GPU would compute it."""
        kwargs = kwargs or {}
        if func is functional.dropout:
            return _drop_out(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            kwargs = dict(kwargs, dropout_p=0.0)  # with dropout the CPU has no kernel that spares the matrix
            args = args[:4]
        if func in IN_FLOAT32 and _is_autocast_on():
            args = tuple(_widen(item) for item in args)
            kwargs = {name: _widen(item) for name, item in kwargs.items()}
        return func(*args, **kwargs)


def _is_autocast_on() -> bool:
    return bool(torch.is_autocast_cpu_enabled())


def _widen(item: Any) -> Any:
    return item.float() if isinstance(item, torch.Tensor) and item.dtype in HALVES else item


def _drop_out(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002, FBT001, FBT002 - torch's signature
    if not training or p == 0.0:
        return input
    result = torch.native_dropout(input, p, train=training)[0]
    return input.copy_(result) if inplace else result


def _translate_autocast() -> None:
    kind = torch.amp.autocast_mode.autocast
    original = kind.__init__

    @wraps(original)
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        if device_type in ("cuda", "xpu"):
            device_type = "cpu"
            asked = kwargs.get("dtype", args[0] if args else None)
            args = args[1:]
            kwargs["dtype"] = asked if asked in HALVES else torch.float16
        original(self, device_type, *args, **kwargs)

    kind.__init__ = __init__


def _make_optimizers_foreach() -> None:
    """Have optimizers choose foreach on the CPU as they do on a GPU."""
    home = sys.modules["torch.optim.optimizer"]  # torch.optim has no attribute of its name
    original = getattr(home, "_get_foreach_kernels_supported_devices", None)
    if original is not None:
        home._get_foreach_kernels_supported_devices = lambda: [*original(), "cpu"]
