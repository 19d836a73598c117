"""Depthwise convolution with the fewest operators: windows times their channel's taps, summed.

A product of halves is float32 until it is summed. It moves kh*kw times the output through memory, and wins where a GPU
waits for launches rather than for memory.

Source: the definition of a depthwise convolution; nothing is rearranged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

from .columns import folded
from .padding import padded
from .sums import HALVES

if TYPE_CHECKING:
    import torch

    from .geometry import Geometry


def _view_windows(x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the view (N, C, 1, kh, kw, Ho, Wo) of the padded input, in one step: here operators are what counts."""
    (top, left), (batch, channels, height, width) = shape.padding, x.shape
    height, width = height + 2 * top, width + 2 * left
    room, (sh, sw), (dh, dw) = padded(x, top, left, height, width), shape.stride, shape.dilation
    strides = (channels * height * width, height * width, 0, dh * width, dw, sh * width, sw)
    return room.as_strided((batch, channels, 1, *shape.kernel, *shape.out), strides)


def _widen_half(operand: torch.Tensor) -> torch.Tensor:
    """Return the operand as what makes each product float32, or wider."""
    return operand.float() if operand.dtype in HALVES else operand


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve; a channel may have several outputs, m. Workspace: the padded input and (N, C, m, kh, kw, Ho, Wo)."""
    channels, (kh, kw) = x.shape[1], shape.kernel
    y = (_view_windows(x, shape) * _widen_half(weight).view(channels, -1, kh, kw, 1, 1)).sum((3, 4)).flatten(1, 2)
    return (y if bias is None else y.add_(bias.view(-1, 1, 1))).to(x.dtype)


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): dy times each tap, put together by `fold`.

    Workspace: (N, C, m, kh*kw, L), and its sum over the m outputs of a channel where there are several.
    """
    batch, channels = dy.shape[0], shape.groups
    columns = dy.reshape(batch, channels, -1, 1, shape.out[0] * shape.out[1])
    columns = columns * _widen_half(weight).reshape(channels, columns.shape[2], -1, 1)
    columns = columns.sum(2) if columns.shape[2] > 1 else columns
    columns = columns.view(batch, -1, columns.shape[-1])
    return folded(columns, size, shape).to(dy.dtype)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: windows times dy, summed over batch and pixels; of halves float32.

    Workspace: as `forward`.
    """
    given = _widen_half(dy).reshape(dy.shape[0], x.shape[1], -1, 1, 1, *shape.out)
    return (_view_windows(x, shape) * given).sum((0, 5, 6)).view(dy.shape[1], 1, *shape.kernel)
