"""Winograd's F(4x4, 3x3) for undilated 3x3 kernels of stride 1, one group, float32 or wider only.

A 4x4 tile of output takes 36 multiplications a channel pair instead of 144. The transforms are products with constant
Kronecker squares, the channels are summed by 36 batched products. Rounding errors grow to about 4e-6 (relative L2), ten
times those of a direct sum: half precision is never sent here, and WINOGRAD = False in planner.py keeps float32 away.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Tuple

import torch

from . import sums
from .layout_copy import rearranged
from .padding import padded, windows

if TYPE_CHECKING:
    from .geometry import Geometry

_INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_KERNEL = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_OUTPUT = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


@lru_cache(maxsize=16)
def transforms(dtype: torch.dtype, device: torch.device) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the transforms of input (36, 36), kernel (36, 9) and output (16, 36)."""
    made = [torch.tensor(m, dtype=torch.float64) for m in (_INPUT, _KERNEL, _OUTPUT)]
    return tuple(torch.kron(m, m).to(device=device, dtype=dtype) for m in made)  # type: ignore[return-value] # three


def _transformed_input(x: torch.Tensor, top: int, left: int, high: int, wide: int) -> torch.Tensor:
    """Return the 6x6 tiles of `x`, four apart, transformed: (36, C, N*high*wide)."""
    tiles = windows(padded(x, top, left, 4 * high + 2, 4 * wide + 2), (6, 6), (4, 4), (1, 1))
    flat = rearranged(tiles, (1, 0, 4, 5, 2, 3)).view(-1, 36)
    del tiles
    return torch.mm(transforms(x.dtype, x.device)[0], flat.t()).view(36, x.shape[1], -1)


def _convolve_tiles(x: torch.Tensor, weight: torch.Tensor, top: int, left: int, size: Tuple[int, int]) -> torch.Tensor:
    """Return the convolution to `size` as a view (N, O, size); `weight` is (O, C, 3, 3) in any layout."""
    (height, width), batch, out_channels = size, x.shape[0], weight.shape[0]
    high, wide = -(-height // 4), -(-width // 4)
    _, kernel, output = transforms(x.dtype, x.device)
    lines = torch.mm(kernel, weight.permute(2, 3, 0, 1).reshape(9, -1)).view(36, out_channels, -1)
    product = torch.bmm(lines, _transformed_input(x, top, left, high, wide))
    tiles = torch.mm(product.view(36, -1).t(), output.t()).view(out_channels, batch, high, wide, 4, 4)
    del product
    y = rearranged(tiles, (1, 0, 2, 4, 3, 5)).view(batch, out_channels, 4 * high, 4 * wide)
    return y[:, :, :height, :width]


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve. Workspace: the tiles of x twice and of y once, 2.25 times their sizes, and y once more."""
    y = _convolve_tiles(x, weight, *shape.padding, shape.out)
    return y.contiguous() if bias is None else torch.add(y, bias.view(-1, 1, 1), out=y.new_empty(y.shape))


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): dy convolved with the turned weight; padding at most 2."""
    turned = weight.flip(2, 3).transpose(0, 1)
    return _convolve_tiles(dy, turned, 2 - shape.padding[0], 2 - shape.padding[1], size).contiguous()


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: the adjoint of `forward`, 36 products (O, tiles) by (tiles, C)."""
    (height, width), batch, out_channels = shape.out, dy.shape[0], dy.shape[1]
    high, wide = -(-height // 4), -(-width // 4)
    _, kernel, output = transforms(x.dtype, x.device)
    tiles = padded(dy, 0, 0, 4 * high, 4 * wide).view(batch, out_channels, high, 4, wide, 4)
    tiles = rearranged(tiles, (1, 0, 2, 4, 3, 5)).view(-1, 16)
    tiles = torch.mm(output.t(), tiles.t()).view(36, out_channels, -1)
    lines = sums.product(tiles, _transformed_input(x, *shape.padding, high, wide).transpose(1, 2))
    dw = torch.mm(kernel.t(), lines.view(36, -1)).view(3, 3, out_channels, x.shape[1])
    return dw.permute(2, 3, 0, 1).contiguous()
