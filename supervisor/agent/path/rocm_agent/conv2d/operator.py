"""F.conv2d's arguments, dtypes and errors, checked before an algorithm that expects valid ones is called."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .algorithms import algorithm_named
from .autocast import autocast_dtype, lowered
from .fast_path import fast_path, remember
from .geometry import check_dimensions, geometry, integer, named_padding, pair
from .result import own_shape


def conv2d(  # noqa: PLR0913, PLR0917 - F.conv2d's own arguments, in its order
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    algorithm: str = "planned",
) -> torch.Tensor:
    """Return what `torch.nn.functional.conv2d` returns for the same arguments, without MIOpen, cuDNN or oneDNN.

    Takes every float and complex dtype that the device multiplies, batched and unbatched input in any layout, and
    autocast; the result has native's memory format. Differs from native where native's own answer is of no use:
    integers and inputs without channels are refused (RuntimeError).

    Raises ValueError for an unknown algorithm; TypeError and RuntimeError as native does, in nearly its words.
    """
    if algorithm == "planned":
        y = fast_path(x, weight, bias, stride, padding, dilation, groups)
        if y is not None:
            return y
    run = algorithm_named(algorithm)
    _check_tensors(x, weight, bias)
    x, weight, bias = _apply_autocast(x, weight, bias)
    stride, dilation = pair("stride", stride), pair("dilation", dilation)
    check_dimensions(x.shape, weight.shape)
    is_named = isinstance(padding, str)
    x, padding = _pad_named(x, weight, padding, stride, dilation) if is_named else (x, pair("padding", padding))
    shape = geometry(
        _plain_sizes(x),
        _plain_sizes(weight),
        None if bias is None else _plain_sizes(bias),
        stride,
        padding,
        dilation,
        integer("groups", groups),
    )
    if algorithm == "planned" and not is_named:
        remember(x, weight, bias, shape)
    if x.dim() == 3:
        y = run(x.unsqueeze(0), weight, bias, shape)
        return own_shape(y, y.shape[1:])
    return run(x, weight, bias, shape)


def _pad_named(x: Any, weight: Any, padding: str, stride: Any, dilation: Any) -> Any:
    """Return the input with what "same" or "valid" puts at one side alone, and the padding of both sides."""
    padding_of_both, more = named_padding(padding, tuple(weight.shape[2:]), stride, dilation)
    return (functional.pad(x, (0, more[1], 0, more[0])) if any(more) else x), padding_of_both


def _check_tensors(x: Any, weight: Any, bias: Any) -> None:
    for name, value in (("input", x), ("weight", weight), ("bias", bias)):
        if not isinstance(value, torch.Tensor) and not (name == "bias" and value is None):
            raise TypeError(f"conv2d(): argument '{name}' must be Tensor, not {type(value).__name__}")


def _apply_autocast(x: Any, weight: Any, bias: Any) -> Any:
    """Apply autocast; raise RuntimeError where dtypes or devices still differ, which no product would take."""
    dtype = autocast_dtype(x)
    x, weight, bias = lowered(x, dtype), lowered(weight, dtype), lowered(bias, dtype)
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and (other.dtype is not x.dtype or other.device != x.device):
            raise RuntimeError(
                f"Input type ({x.dtype} on {x.device}) and {name} type ({other.dtype} on {other.device}) "
                "should be the same"
            )
    return x, weight, bias


def _plain_sizes(tensor: torch.Tensor) -> Any:
    """Return the shape as plain numbers: inside torch.jit.trace sizes are tensors, which must not enter the cache."""
    return tuple(int(size) for size in tensor.shape) if torch.jit.is_tracing() else tuple(tensor.shape)
