"""1x1 kernels without padding, one group: the input is already the matrix of columns, strides select from it.

On small maps a process takes as long to ask for a view as a GPU for a product. So each view is made in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

import torch

from . import sums
from .layout_copy import rearranged

if TYPE_CHECKING:
    from .geometry import Geometry


def _pick_pixels(x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the pixels that the stride keeps, contiguous."""
    if shape.stride != (1, 1):
        x = x[:, :, :: shape.stride[0], :: shape.stride[1]]
    return x.contiguous()


def _spread_pixels(dx: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return `dx` where the stride picked from, zeros elsewhere; for a stride of 2 in one pass over the result.

    A copy of a real number into a complex one writes a zero imaginary part.
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


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve: weight (O, C) times each sample of x (N, C, L). Workspace: what a stride picks."""
    x = _pick_pixels(x, shape)
    (batch, channels, height, width), outputs = x.shape, weight.shape[0]
    flat = weight.contiguous().as_strided((batch, outputs, channels), (0, channels, 1))
    y = torch.bmm(flat, x.view(batch, channels, height * width)).resize_((batch, outputs, height, width))
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): transposed weight times dy; zero where the stride jumps."""
    batch, outputs, height, width = dy.shape
    dx = _multiply_transposed(weight, dy.contiguous().view(batch, outputs, height * width))
    dx = dx.resize_((batch, weight.shape[1], height, width))
    return dx if shape.stride == (1, 1) else _spread_pixels(dx, (size[0], size[1]), shape)


def _multiply_transposed(weight: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Return the transposed weight times each sample of dy (N, O, L)."""
    outputs, channels = weight.shape[0], weight.shape[1]
    return torch.bmm(weight.contiguous().as_strided((dy.shape[0], channels, outputs), (0, 1, channels)), dy)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: a product a sample, and their sum. Workspace: N weights, a stride's pick."""
    batch, outputs, height, width = dy.shape
    return _sum_samples(dy.contiguous().view(batch, outputs, height * width), _pick_pixels(x, shape))


def _sum_samples(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the sum over samples of dy (N, O, L) times contiguous x (N, C, H, W), transposed; float32 of halves."""
    dy, x = sums.wide(dy, x)
    (batch, outputs, pixels), channels = dy.shape, x.shape[1]
    dw = sums.product(dy, x.as_strided((batch, pixels, channels), (channels * pixels, 1, pixels)))
    return (dw.sum(0) if batch > 1 else dw).resize_((outputs, channels, 1, 1))


def both_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return at stride 1 what `input_gradient` and `weight_gradient` return, with less to ask for."""
    batch, outputs, height, width = dy.shape
    dy = dy.contiguous().view(batch, outputs, height * width)
    return _multiply_transposed(weight, dy).resize_(x.shape), _sum_samples(dy, x.contiguous())


def whole_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by one product for the entire batch, wide also where maps are small. Workspace: x and y once more."""
    x = _pick_pixels(x, shape)
    y = _side_by_side_product(weight.reshape(weight.shape[0], -1), x)
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def whole_input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry
) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W) by one product. Workspace: dy and dx once more."""
    dx = _side_by_side_product(weight.reshape(weight.shape[0], -1).t(), dy)
    return dx if shape.stride == (1, 1) else _spread_pixels(dx, (size[0], size[1]), shape)


def whole_weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient by one long product, of halves float32. Workspace: x and dy once more."""
    dy, x = sums.wide(dy, _pick_pixels(x, shape))
    dw = sums.product(_side_by_side(dy).unsqueeze(0), _side_by_side(x).t().unsqueeze(0))
    return dw.resize_((dy.shape[1], x.shape[1], 1, 1))


def _side_by_side(x: torch.Tensor) -> torch.Tensor:
    """Return x (N, C, H, W) as (C, N*H*W)."""
    return rearranged(x, (1, 0, 2, 3)).view(x.shape[1], -1)


def _side_by_side_product(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return matrix (O, C) times x (N, C, H, W) as (N, O, H, W)."""
    batch, _, height, width = x.shape
    return rearranged(torch.mm(matrix, _side_by_side(x)).view(-1, batch, height, width), (1, 0, 2, 3))


def turned_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by a copy of the weight with its outputs side by side: a GPU's BLAS has another kernel for it."""
    x = _pick_pixels(x, shape)
    batch, channels, height, width = x.shape
    flat = weight.reshape(-1, channels).t().contiguous().t()
    y = torch.bmm(flat.expand(batch, -1, -1), x.view(batch, channels, height * width))
    y = y.resize_((batch, weight.shape[0], height, width))
    return y if bias is None else y.add_(bias.view(-1, 1, 1))
