"""A group a channel: each channel's kernel becomes the small matrix from an input tile to an output tile.

A tile of 4x4 outputs reads ((4-1)*s + k)^2 inputs. So y (C, 16, tiles) = M (C, 16, inputs) @ tiles of x, one batched
product for all channels instead of a product a channel; M holds every tap where its output finds it and zeros between.
Workspace: the tiles, 2.25 times the input for a 3x3 kernel of stride 1, and the output once more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Tuple

import torch
from torch.nn import functional

from .padding import padded, windows

if TYPE_CHECKING:
    from .geometry import Geometry

    Pair = Tuple[int, int]

TILE = 4


@lru_cache(maxsize=64)
def _places(
    kernel: Pair, stride: Pair, dilation: Pair, dtype: torch.dtype, device: torch.device
) -> Tuple[torch.Tensor, Pair]:
    """Return the matrix (kh*kw, 16 * inputs) of ones that puts taps into their places in M, and the input tile."""
    size = tuple((TILE - 1) * s + d * (k - 1) + 1 for k, s, d in zip(kernel, stride, dilation))
    axes = []
    for taps, step, spread, inputs in zip(kernel, stride, dilation, size):
        axis = torch.zeros(taps, TILE, inputs)
        for tap in range(taps):
            for out in range(TILE):
                axis[tap, out, out * step + tap * spread] = 1.0
        axes.append(axis)
    ones = torch.einsum("iam,jbn->ijabmn", *axes).reshape(kernel[0] * kernel[1], -1)
    return ones.to(device=device, dtype=dtype), (size[0], size[1])


def _counts(shape: Geometry) -> Pair:
    return -(-shape.out[0] // TILE), -(-shape.out[1] // TILE)


def _input_tiles(x: torch.Tensor, shape: Geometry, tile: Pair) -> torch.Tensor:
    """Return the tiles of `x` as (C, inputs, N*high*wide)."""
    high, wide = _counts(shape)
    step = (TILE * shape.stride[0], TILE * shape.stride[1])
    room = padded(x, *shape.padding, (high - 1) * step[0] + tile[0], (wide - 1) * step[1] + tile[1])
    view = windows(room, tile, step, (1, 1))
    return view.permute(1, 2, 3, 0, 4, 5).reshape(x.shape[1], tile[0] * tile[1], -1)


def _output_tiles(dy: torch.Tensor, channels: int, shape: Geometry) -> torch.Tensor:
    """Return the 4x4 tiles of `dy` as (C, outputs a channel * 16, N*high*wide)."""
    high, wide = _counts(shape)
    room = padded(dy, 0, 0, TILE * high, TILE * wide)
    view = room.view(dy.shape[0], dy.shape[1], high, TILE, wide, TILE)
    return view.permute(1, 3, 5, 0, 2, 4).reshape(channels, -1, dy.shape[0] * high * wide)


def _matrix(weight: torch.Tensor, channels: int, shape: Geometry) -> Tuple[torch.Tensor, Pair]:
    places, tile = _places(shape.kernel, shape.stride, shape.dilation, weight.dtype, weight.device)
    return torch.mm(weight.reshape(weight.shape[0], -1), places).view(channels, -1, tile[0] * tile[1]), tile


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve; a channel may have several outputs."""
    matrix, tile = _matrix(weight, x.shape[1], shape)
    high, wide = _counts(shape)
    y = torch.bmm(matrix, _input_tiles(x, shape, tile)).view(-1, TILE, TILE, x.shape[0], high, wide)
    y = y.permute(3, 0, 4, 1, 5, 2).reshape(x.shape[0], -1, TILE * high, TILE * wide)
    y = y[:, :, : shape.out[0], : shape.out[1]]
    return y.contiguous() if bias is None else torch.add(y, bias.view(-1, 1, 1), out=y.new_empty(y.shape))


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Pair, shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): transposed M times dy's tiles, overlaps added by `fold`."""
    channels, (high, wide) = shape.groups, _counts(shape)
    matrix, tile = _matrix(weight, channels, shape)
    tiles = torch.bmm(matrix.transpose(1, 2), _output_tiles(dy, channels, shape))
    columns = tiles.view(-1, dy.shape[0], high * wide).transpose(0, 1)
    step = (TILE * shape.stride[0], TILE * shape.stride[1])
    room = ((high - 1) * step[0] + tile[0], (wide - 1) * step[1] + tile[1])
    whole = functional.fold(columns.contiguous(), room, tile, stride=step)
    return padded(whole, -shape.padding[0], -shape.padding[1], *size)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: the tiles of dy times those of x, transposed, gathered tap by tap out of M."""
    places, tile = _places(shape.kernel, shape.stride, shape.dilation, x.dtype, x.device)
    dm = torch.bmm(_output_tiles(dy, x.shape[1], shape), _input_tiles(x, shape, tile).transpose(1, 2))
    return torch.mm(dm.view(dy.shape[1], -1), places.t()).view(dy.shape[1], 1, *shape.kernel)
