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
    """Return the pixels that the stride keeps, as (N, C, L)."""
    if shape.stride != (1, 1):
        x = x[:, :, :: shape.stride[0], :: shape.stride[1]]
    return x.reshape(x.shape[0], x.shape[1], -1)


def _narrow(batch: int, pixels: int) -> bool:
    return batch > 1 and pixels < SMALL_MAP


def _product(matrix: torch.Tensor, x: torch.Tensor, *, whole: bool | None) -> torch.Tensor:
    """Return matrix (O, C) times every sample of x (N, C, L): as one product if `whole`, None where maps are small."""
    batch, _, pixels = x.shape
    if not (_narrow(batch, pixels) if whole is None else whole):
        return torch.bmm(matrix.expand(batch, -1, -1), x)
    y = torch.mm(matrix, _side_by_side(x))
    return rearranged(y.view(-1, batch, pixels), (1, 0, 2))


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
    y = _product(weight.reshape(weight.shape[0], -1), _picked(x, shape), whole=whole)
    if bias is not None:
        y = y.add_(bias.view(-1, 1))
    # Contiguous, as native's: code after a convolution may flatten it with `view`.
    return y.reshape(x.shape[0], weight.shape[0], *shape.out).contiguous()


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry, *, whole: bool | None = None
) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): transposed weight times dy; zero where the stride jumps."""
    dx = _product(weight.reshape(weight.shape[0], -1).t(), dy.reshape(dy.shape[0], dy.shape[1], -1), whole=whole)
    dx = dx.reshape(dy.shape[0], -1, *shape.out)
    if shape.stride == (1, 1):
        return dx
    return _spread(dx, (size[0], size[1]), shape)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry, *, whole: bool | None = None) -> torch.Tensor:
    """Return the weight's gradient: a product a sample and their sum, or one long product if `whole`."""
    dy, x = dy.reshape(dy.shape[0], dy.shape[1], -1), _picked(x, shape)
    batch, _, pixels = dy.shape
    if _narrow(batch, pixels) if whole is None else whole:
        dw = torch.mm(_side_by_side(dy), _side_by_side(x).t())
    else:
        dw = torch.bmm(dy, x.transpose(1, 2))
        dw = dw.sum(0) if batch > 1 else dw
    return dw.view(dy.shape[1], x.shape[1], 1, 1)


def turned_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by a copy of the weight with its outputs side by side: a card's BLAS has another kernel for it."""
    flat = weight.reshape(weight.shape[0], -1).t().contiguous().t()
    return forward(x, flat.view(*flat.shape, 1, 1), bias, shape, whole=False)
