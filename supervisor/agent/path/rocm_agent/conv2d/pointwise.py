"""1x1 kernels without padding, one group: the input is the matrix of columns already; strides only pick from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

import torch

from .moving import rearranged

if TYPE_CHECKING:
    from .geometry import Geometry

SMALL_MAP = 128
"""Output pixels below which a product a sample is so narrow that one of the whole batch is worth two copies."""


def _picked(x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the pixels that the stride keeps, contiguous."""
    if shape.stride != (1, 1):
        x = x[:, :, :: shape.stride[0], :: shape.stride[1]]
    return x.contiguous()


def _flat(maps: torch.Tensor) -> torch.Tensor:
    """Return contiguous (N, C, H, W) as (N, C, H*W)."""
    batch, channels, height, width = maps.shape
    return maps.view(batch, channels, height * width)


def _narrow(batch: int, pixels: int) -> bool:
    return batch > 1 and pixels < SMALL_MAP


def _product(weight: torch.Tensor, x: torch.Tensor, *, turned: bool, whole: bool | None) -> torch.Tensor:
    """Return weight (O, C), or (C, O) if `turned`, times every sample of contiguous x, (N, O, height, width).

    As one product if `whole`, None where maps are small. The views are made in one step each: on small maps a process
    takes as long for a view as a card for a product.
    """
    batch, _, height, width = x.shape
    outputs, channels = weight.shape[0], weight.shape[1]
    rows, size, strides = (channels, outputs, (1, channels)) if turned else (outputs, channels, (channels, 1))
    weight = weight.contiguous()
    if not (_narrow(batch, height * width) if whole is None else whole):
        y = torch.bmm(weight.as_strided((batch, rows, size), (0, *strides)), x.view(batch, size, height * width))
    else:
        y = torch.mm(weight.as_strided((rows, size), strides), _side_by_side(_flat(x)))
        y = rearranged(y.view(rows, batch, height * width), (1, 0, 2))
    return y.view(batch, rows, height, width)


def _side_by_side(x: torch.Tensor) -> torch.Tensor:
    """Return x (N, C, L) as (C, N*L)."""
    return rearranged(x, (1, 0, 2)).view(x.shape[1], -1)


def _spread(dx: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return `dx` where the stride picked from, zeros elsewhere; for a stride of 2 in one pass over the result.

    A copy of a real number into a complex one writes a zero beside it.
    """
    (down, across), pairs = shape.stride, {torch.float32: torch.complex64, torch.float64: torch.complex128}
    if across == 2 and size[1] == 2 * shape.out[1] and dx.dtype in pairs:
        made = dx.new_empty((*dx.shape[:2], *size))
        pixels = made.view(pairs[dx.dtype])
        for row in range(1, down):
            pixels[:, :, row::down].zero_()
        pixels[:, :, ::down].copy_(dx)
        return made
    made = dx.new_zeros((*dx.shape[:2], *size))
    made[:, :, ::down, ::across] = dx
    return made


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, *, whole: bool | None = None
) -> torch.Tensor:
    """Convolve with weight (O, C) times x (N, C, L). Workspace: none, or x and y once more if `whole`."""
    y = _product(weight, _picked(x, shape), turned=False, whole=whole)
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry, *, whole: bool | None = None
) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): transposed weight times dy; zero where the stride jumps."""
    dx = _product(weight, dy.contiguous(), turned=True, whole=whole)
    return dx if shape.stride == (1, 1) else _spread(dx, (size[0], size[1]), shape)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry, *, whole: bool | None = None) -> torch.Tensor:
    """Return the weight's gradient: a product a sample and their sum, or one long product if `whole`."""
    x, (batch, outputs, height, width) = _picked(x, shape), dy.shape
    channels, pixels = x.shape[1], height * width
    dy = dy.contiguous().view(batch, outputs, pixels)
    if _narrow(batch, pixels) if whole is None else whole:
        dw = torch.mm(_side_by_side(dy), _side_by_side(_flat(x)).t())
    else:
        dw = torch.bmm(dy, x.as_strided((batch, pixels, channels), (channels * pixels, 1, pixels)))
        dw = dw.sum(0) if batch > 1 else dw
    return dw.view(outputs, channels, 1, 1)


def turned_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by a copy of the weight with its outputs side by side: a card's BLAS has another kernel for it."""
    x = _picked(x, shape)
    batch, channels, height, width = x.shape
    flat = weight.reshape(-1, channels).t().contiguous().t()
    y = torch.bmm(flat.expand(batch, -1, -1), x.view(batch, channels, height * width)).view(batch, -1, height, width)
    return y if bias is None else y.add_(bias.view(-1, 1, 1))
