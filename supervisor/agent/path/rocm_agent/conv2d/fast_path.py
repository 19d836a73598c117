"""The fast path of a convolution whose like was planned before: one look-up instead of all checks.

A small network on a fast GPU waits for the process that asks for its convolutions. What decides how one is computed
is the key, so that the checks which the key's first holder passed hold for every other; what may change from call to
call, a transform or autocast, is checked again. It refuses nothing: what it does not know takes the long way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from .autocast import autocast_dtype, lowered, without_autocast
from .geometry import is_pair
from .planned import by_plan, takes, unusual
from .planner import known, plan

if TYPE_CHECKING:
    import torch

    from .geometry import Geometry

LIMIT = 4096
"""Convolutions that are remembered; a training at ever new sizes starts again then."""


def fast_path(  # noqa: PLR0913, PLR0917 - F.conv2d's arguments
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Optional[torch.Tensor]:
    """Return the planned convolution where one of its kind was remembered, else None."""
    if unusual(x, weight, bias):
        return None
    dtype = autocast_dtype(x)
    if dtype is not None:
        x, weight, bias = lowered(x, dtype), lowered(weight, dtype), lowered(bias, dtype)
    try:
        found = known.get(_cache_key(x, weight, bias, stride, padding, dilation, groups))
    except TypeError:  # a list
        return None
    # True and 1.0 are equal to 1, and no argument.
    if found is None or not (is_pair(stride) and is_pair(padding) and is_pair(dilation) and type(groups) is int):
        return None
    if dtype is None:
        return by_plan(x, weight, bias, *found)
    return without_autocast(by_plan, x, weight, bias, *found)


def remember(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> None:
    """Have convolutions of these operands, checked and of one dtype, take the short way from now on."""
    if not unusual(x, weight, bias) and x.dim() == 4 and takes(x):
        if len(known) >= LIMIT:
            known.clear()
        key = _cache_key(x, weight, bias, shape.stride, shape.padding, shape.dilation, shape.groups)
        known[key] = shape, plan(x.shape, weight.shape, x.dtype, x.device, shape)


def _cache_key(  # noqa: PLR0913, PLR0917 - the same
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Any:
    more = None if bias is None else (bias.shape, bias.dtype, bias.device)
    item = (x.shape, x.dtype, x.device, weight.shape, weight.dtype, weight.device)
    return item, more, stride, padding, dilation, groups
