"""im2col without the copies that torch.matmul adds, for any geometry and groups: each product is one batched GEMM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Tuple

import torch

from . import sums
from .padding import gathered, windows

if TYPE_CHECKING:
    from .geometry import Geometry


def columns_of(x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return x's windows as (N, C*kh*kw, out height * out width), copied once from a view of the padded input."""
    top, left = shape.padding
    if top or left:
        # Not `padded`, whose short way is im2col too: this is what every other way is compared with.
        x = torch.constant_pad_nd(x, (left, left, top, top))
    view = windows(x.contiguous(), shape.kernel, shape.stride, shape.dilation)
    return view.reshape(x.shape[0], x.shape[1] * view.shape[2] * view.shape[3], view.shape[4] * view.shape[5])


def unfolded(x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the same by PyTorch's im2col: one operator, which pads by itself."""
    pixels = shape.out[0] * shape.out[1]
    made = gathered(x, shape.kernel, shape.dilation, shape.padding, shape.stride, pixels)
    return made.view(x.shape[0], -1, pixels)


def forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    shape: Geometry,
    lower: Callable[[torch.Tensor, Geometry], torch.Tensor] = columns_of,
) -> torch.Tensor:
    """Convolve: weight (g, o, c*kh*kw) times columns (N*g, c*kh*kw, L), batched over samples and groups.

    `torch.bmm` reads the same weight for every sample (batch stride 0), where `torch.matmul` would transpose and copy
    the columns. Workspace: the padded input and the columns, kh*kw times the input at stride 1.
    """
    batch, groups, out_channels = x.shape[0], shape.groups, weight.shape[0]
    columns = lower(x, shape)
    size = (batch, out_channels, *shape.out)
    if groups == 1:
        rows = columns.shape[1]
        flat = weight.contiguous().as_strided((batch, out_channels, rows), (0, rows, 1))
    else:
        columns = columns.view(batch * groups, -1, columns.shape[2])
        flat = weight.reshape(1, groups, out_channels // groups, -1).expand(batch, -1, -1, -1).flatten(0, 1)
    y = torch.bmm(flat, columns).resize_(size)
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): transposed weight times dy, summed by `fold` (col2im).

    The columns of half precision are float32, so that the sum of the taps is what is rounded.
    """
    batch, groups, outputs = dy.shape[0], shape.groups, weight.shape[0] // shape.groups
    rows, pixels, dtype = weight.shape[1] * shape.kernel[0] * shape.kernel[1], shape.out[0] * shape.out[1], dy.dtype
    dy, weight = sums.wide(dy, weight)
    dy = dy.reshape(batch * groups, outputs, pixels)
    if groups == 1:
        flat = weight.contiguous().as_strided((batch, rows, outputs), (0, 1, rows))
        return folded(sums.multiplied(flat, dy), size, shape).to(dtype)
    flat = weight.reshape(groups, outputs, rows).transpose(1, 2).expand(batch, -1, -1, -1).flatten(0, 1)
    return folded(sums.multiplied(flat, dy).view(batch, groups * rows, pixels), size, shape).to(dtype)


def folded(columns: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return what `fold` makes of columns (N, C*kh*kw, L), with no more memory than it needs.

    `fold` returns a tensor on a storage as large as the columns: kh*kw times dx, for as long as dx lives.
    """
    dx = columns.new_empty((columns.shape[0], columns.shape[1] // (shape.kernel[0] * shape.kernel[1]), *size))
    return torch._C._nn.col2im(columns, size, shape.kernel, shape.dilation, shape.padding, shape.stride, out=dx)


def weight_gradient(
    dy: torch.Tensor,
    x: torch.Tensor,
    shape: Geometry,
    lower: Callable[[torch.Tensor, Geometry], torch.Tensor] = columns_of,
) -> torch.Tensor:
    """Return the gradient of the weight: dy times the transposed columns, one product a sample, then their sum.

    Of halves it is float32, and rounded once by whoever asked for it.
    """
    dy, x = sums.wide(dy, x)
    batch, groups, out_channels = x.shape[0], shape.groups, dy.shape[1]
    columns = lower(x, shape)
    if groups > 1:
        columns = columns.view(batch * groups, -1, columns.shape[2])
    parts = sums.product(dy.reshape(batch * groups, out_channels // groups, -1), columns.transpose(1, 2))
    if batch > 1:
        parts = (parts if groups == 1 else parts.view(batch, -1)).sum(0)
    return parts.resize_((out_channels, x.shape[1] // groups, *shape.kernel))
