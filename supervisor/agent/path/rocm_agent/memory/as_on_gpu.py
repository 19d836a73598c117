"""Has a training on the CPU make the tensors that it would make on a GPU, where torch chooses otherwise by device.

Autocast for "cuda" becomes autocast on the CPU with CUDA's operations in float32 (`cuda_autocast.py`); optimizers work
on lists of tensors (foreach); dropout keeps a mask of bytes; attention is computed without its matrix. One whose mask
is learned, as a position bias is, is not: for its gradient a GPU keeps the matrix and what dropout leaves of it.
Where nothing is computed (`shapes_only.py`), a search for NaN and infinity finds none.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any, Optional

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from . import cuda_autocast, shapes_only

functional = torch.nn.functional
HAS_FUSED_RMS_NORM = hasattr(torch.ops.aten, "_fused_rms_norm")
CHECKPOINTS = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant")
"""What computes activations again in torch 2.1 and later, and before."""


class AsOnGpu(TorchFunctionMode):
    """In force for the rest of the process once installed."""

    def __init__(self, shapes: Optional[shapes_only.ShapesOnly] = None) -> None:
        """`shapes`: what leaves the arithmetic out; None: nothing does."""
        super().__init__()
        self._shapes = shapes

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
        if self._shapes is not None and func in shapes_only.IN_HEALTH:
            result = func(*args, **kwargs)
            self._shapes.fill_in_health(result, value=shapes_only.IN_HEALTH[func])
            return result
        if func is functional.dropout:
            return _drop_out(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return _attend(*args, **kwargs)
        if func is getattr(functional, "rms_norm", None) and HAS_FUSED_RMS_NORM:
            return _normalize(*args, **kwargs)
        return cuda_autocast.call(func, args, kwargs) if _is_autocast_on() else func(*args, **kwargs)


def _is_autocast_on() -> bool:
    return bool(torch.is_autocast_cpu_enabled())


def _drop_out(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002, FBT001, FBT002 - torch's signature
    if not training or p == 0.0:
        return input
    result = torch.native_dropout(input, p, train=training)[0]
    return input.copy_(result) if inplace else result


def _attend(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    *rest: Any,
    **named: Any,
) -> Any:
    """Return scaled_dot_product_attention, which keeps its matrix where the mask is learned and else does not."""
    if attn_mask is None or not attn_mask.requires_grad:
        # With dropout the CPU has no kernel that spares the matrix.
        return functional.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, *rest, **named)
    given = [query, key, value, attn_mask]
    if _is_autocast_on():
        given = [item.to(torch.get_autocast_cpu_dtype()) for item in given]
    dropped = torch.ones((*query.shape[:-1], key.shape[-2]), dtype=torch.bool, device=query.device)
    names = dict(zip(("is_causal",), rest), **named, dropout_mask=dropped if dropout_p else None)
    with torch.autocast("cpu", enabled=False):
        return torch._scaled_dot_product_attention_math(*given, dropout_p, **names)[0]


def _normalize(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:  # noqa: A002 - torch's signature
    """Return rms_norm, for which a GPU has a kernel that keeps what that of layer_norm does."""
    if _is_autocast_on():
        input = cuda_autocast.widen(input)  # noqa: A001 - as above
    return functional.layer_norm(input, normalized_shape, weight, None, eps or 1e-6)


def _translate_autocast() -> None:
    kind = torch.amp.autocast_mode.autocast
    original = kind.__init__

    @wraps(original)
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        if device_type in ("cuda", "xpu"):
            device_type = "cpu"
            asked = kwargs.get("dtype", args[0] if args else None)
            args = args[1:]
            kwargs["dtype"] = asked if asked in cuda_autocast.HALVES else torch.float16
        original(self, device_type, *args, **kwargs)

    kind.__init__ = __init__


def _make_optimizers_foreach() -> None:
    """Have optimizers choose foreach on the CPU as they do on a GPU."""
    home = sys.modules["torch.optim.optimizer"]  # torch.optim has no attribute of its name
    original = getattr(home, "_get_foreach_kernels_supported_devices", None)
    if original is not None:
        home._get_foreach_kernels_supported_devices = lambda: [*original(), "cpu"]
