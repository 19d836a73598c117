"""Depthwise convolution on small maps: each channel's kernel becomes one matrix from input map to output map.

With N samples, P = H*W and L = Ho*Wo pixels: y (C, N, L) = x (C, N, P) @ M (C, P, L), where x is only a view, for
`torch.bmm` takes the channels of NCHW as its batch. No padding is copied: M has no row for it. It multiplies by P/9
times too many zeros, which costs nothing where a 7x7 map would otherwise wait for five launches.

Source: depthwise.py with the map as its only tile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Tuple

import torch

from . import sums
from .padding import span

if TYPE_CHECKING:
    from .geometry import Geometry

    Pair = Tuple[int, int]


@lru_cache(maxsize=64)
def _place_taps(shape: Geometry, size: Pair, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the matrix (kh*kw, P*L) of ones that puts taps into their places in M."""
    axes = []
    for axis, inputs in enumerate(size):
        ones = torch.zeros(shape.kernel[axis], inputs, shape.out[axis])
        for tap in range(shape.kernel[axis]):
            start = tap * shape.dilation[axis] - shape.padding[axis]
            for out in range(*span(start, shape.stride[axis], inputs, shape.out[axis])):
                ones[tap, start + out * shape.stride[axis], out] = 1.0
        axes.append(ones)
    matrix = torch.einsum("iha,jwb->ijhwab", *axes).reshape(shape.kernel[0] * shape.kernel[1], -1)
    return matrix.to(device=device, dtype=dtype)


def _make_matrix(weight: torch.Tensor, shape: Geometry, size: Pair) -> torch.Tensor:
    """Return M (C, P, L)."""
    places = _place_taps(shape, size, weight.dtype, weight.device)
    return torch.mm(weight.view(weight.shape[0], -1), places).view(weight.shape[0], size[0] * size[1], -1)


def _view_maps(x: torch.Tensor) -> torch.Tensor:
    """Return contiguous maps as the view (C, N, pixels)."""
    batch, channels, height, width = x.shape
    pixels = height * width
    return x.as_strided((channels, batch, pixels), (pixels, channels * pixels, 1))


def _multiply_maps(x: torch.Tensor, matrix: torch.Tensor, size: Pair) -> torch.Tensor:
    """Return x (N, C, H, W) times every channel's matrix as (N, C, *size), which a GPU's BLAS writes into place."""
    y = x.new_empty((x.shape[0], x.shape[1], *size))
    if x.is_cuda:
        torch.bmm(_view_maps(x.contiguous()), matrix, out=_view_maps(y))
    else:  # which would take the channels one by one
        _view_maps(y).copy_(torch.bmm(_view_maps(x.contiguous()), matrix))
    return y


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve; one output a channel. Workspace: M, C*P*L whatever the batch; where BLAS copies, the output too."""
    y = _multiply_maps(x, _make_matrix(weight, shape, (x.shape[2], x.shape[3])), shape.out)
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Pair, shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): dy times transposed M. Workspace: as `forward`."""
    size = (size[0], size[1])
    return _multiply_maps(dy, _make_matrix(weight, shape, size).transpose(1, 2), size)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: M's, x transposed times dy, gathered by tap. Workspace: M; float32 of halves."""
    dy, x = sums.wide(dy, x)
    dm = sums.product(_view_maps(x.contiguous()).transpose(1, 2), _view_maps(dy.contiguous())).view(x.shape[1], -1)
    places = _place_taps(shape, (x.shape[2], x.shape[3]), dm.dtype, x.device)
    return torch.mm(dm, places.t()).view(dy.shape[1], 1, *shape.kernel)
