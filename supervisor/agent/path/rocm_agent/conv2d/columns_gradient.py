"""The gradients of a convolution of stride 1 as a convolution of dy by the turned weight, without `fold`.

`columns.input_gradient` multiplies first and sums kh*kw times the input into place; here dy is gathered by im2col, and
one product makes the gradient. The same columns serve the weight's gradient. For any groups, dilated or not.

Source: as mec.both_gradients, which lowers dy once; with im2col's columns in place of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

import torch

from . import sums
from .padding import gathered

if TYPE_CHECKING:
    from .geometry import Geometry


def takes(shape: Geometry) -> bool:
    """Whether dy has columns for every pixel of the input: stride 1, padded by at most the kernel's reach."""
    reach = (d * (k - 1) for d, k in zip(shape.dilation, shape.kernel))
    return shape.stride == (1, 1) and all(p <= most for p, most in zip(shape.padding, reach))


def _gather_columns(dy: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return dy's windows about each pixel of the input, as (N*g, o*kh*kw, H*W)."""
    (kh, kw), (dh, dw), (ph, pw), pixels = shape.kernel, shape.dilation, shape.padding, size[0] * size[1]
    around = (dh * (kh - 1) - ph, dw * (kw - 1) - pw)
    made = gathered(dy, shape.kernel, shape.dilation, around, shape.stride, pixels)
    return made.view(dy.shape[0] * shape.groups, -1, pixels)


def _multiply_columns(
    columns: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry
) -> torch.Tensor:
    """Return dx: the weight turned by 180 degrees, (c, o*kh*kw) of each group, times the columns of each sample."""
    (outputs, channels, kh, kw), groups = weight.shape, shape.groups
    batch, rows = columns.shape[0] // groups, columns.shape[1]
    if outputs == groups:
        # Of one output a group nothing but the kernel turns, and the copies for the samples are made on the way.
        flat = weight.expand(batch, -1, -1, -1, -1).flip(3, 4).reshape(batch * groups, channels, rows)
    else:
        flat = weight.view(groups, -1, channels, kh, kw).flip(3, 4).transpose(1, 2).reshape(1, groups, channels, rows)
        flat = flat.expand(batch, -1, -1, -1).reshape(batch * groups, channels, rows)
    return torch.bmm(flat, columns).view(batch, groups * channels, *size)


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W). Workspace: dy's columns, kh*kw times dy, and N weights."""
    return _multiply_columns(_gather_columns(dy, size, shape), weight.contiguous(), size, shape)


def both_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of input and weight; dW, turned, is x times the transposed columns, summed over the batch.

    Of halves dW is float32. Workspace: dy's columns and 2 N weights.
    """
    (outputs, channels, kh, kw), groups, batch = weight.shape, shape.groups, x.shape[0]
    size = (x.shape[2], x.shape[3])
    columns = _gather_columns(dy, size, shape)
    parts = sums.product(x.reshape(batch * groups, channels, -1), columns.transpose(1, 2))
    if batch > 1:
        parts = parts.view(batch, -1).sum(0)
    turned = parts.view(groups, channels, outputs // groups, kh, kw).flip(3, 4)
    dw = turned.transpose(1, 2).contiguous().view(weight.shape)
    return _multiply_columns(columns, weight.contiguous(), size, shape), dw
