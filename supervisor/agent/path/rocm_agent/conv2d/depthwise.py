"""A group a channel: each channel's kernel becomes the small matrix from an input tile to an output tile.

A tile of a*b outputs reads ((a-1)*s + k) * ((b-1)*s + k) inputs. So y (C, a*b, tiles) = M (C, a*b, inputs) @ tiles of
x, one batched product for all channels instead of a product a channel; M holds every tap where its output finds it and
zeros between. Tiles are as large as divides the output, up to 8, so that none reaches over its edge.
Workspace: the tiles, 2.25 times the input for a 3x3 kernel of stride 1 in tiles of 4x4, and the output once more.

Source: the tiles are those of winograd.py without its transforms, as depthwise kernels sum over no channels.
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

TILES = (8, 7, 6, 5, 4)
SMALLEST = 4


def tile_of(shape: Geometry) -> Pair:
    """Return the outputs of a tile down and across: the largest of TILES that divides, 4 where none does."""
    down, across = (next((tile for tile in TILES if out % tile == 0), SMALLEST) for out in shape.out)
    return down, across


@lru_cache(maxsize=64)
def _places(
    kernel: Pair, stride: Pair, dilation: Pair, tile: Pair, dtype: torch.dtype, device: torch.device
) -> Tuple[torch.Tensor, Pair]:
    """Return the matrix (kh*kw, outputs * inputs) of ones that puts taps into their places in M, and the input tile."""
    reach = [(a - 1) * s + d * (k - 1) + 1 for a, k, s, d in zip(tile, kernel, stride, dilation)]
    axes = []
    for taps, step, spread, outs, inputs in zip(kernel, stride, dilation, tile, reach):
        axis = torch.zeros(taps, outs, inputs)
        for tap in range(taps):
            for out in range(outs):
                axis[tap, out, out * step + tap * spread] = 1.0
        axes.append(axis)
    ones = torch.einsum("iam,jbn->ijabmn", *axes).reshape(kernel[0] * kernel[1], -1)
    return ones.to(device=device, dtype=dtype), (reach[0], reach[1])


def counts(shape: Geometry) -> Pair:
    """Return how many tiles the output has down and across."""
    tile = tile_of(shape)
    return -(-shape.out[0] // tile[0]), -(-shape.out[1] // tile[1])


def _input_tiles(x: torch.Tensor, shape: Geometry, reach: Pair) -> torch.Tensor:
    """Return the tiles of `x` as (C, inputs, N*high*wide)."""
    (high, wide), tile = counts(shape), tile_of(shape)
    step = (tile[0] * shape.stride[0], tile[1] * shape.stride[1])
    room = padded(x, *shape.padding, (high - 1) * step[0] + reach[0], (wide - 1) * step[1] + reach[1])
    view = windows(room, reach, step, (1, 1))
    return view.permute(1, 2, 3, 0, 4, 5).reshape(x.shape[1], reach[0] * reach[1], -1)


def _output_tiles(dy: torch.Tensor, channels: int, shape: Geometry) -> torch.Tensor:
    """Return the tiles of `dy` as (C, outputs a channel * tile, N*high*wide)."""
    (high, wide), (down, across) = counts(shape), tile_of(shape)
    room = padded(dy, 0, 0, down * high, across * wide)
    view = room.view(dy.shape[0], dy.shape[1], high, down, wide, across)
    return view.permute(1, 3, 5, 0, 2, 4).reshape(channels, -1, dy.shape[0] * high * wide)


def _matrix(weight: torch.Tensor, channels: int, shape: Geometry) -> Tuple[torch.Tensor, Pair]:
    places, reach = _places(
        shape.kernel, shape.stride, shape.dilation, tile_of(shape), weight.dtype, weight.device
    )
    return torch.mm(weight.reshape(weight.shape[0], -1), places).view(channels, -1, reach[0] * reach[1]), reach


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve; a channel may have several outputs."""
    matrix, reach = _matrix(weight, x.shape[1], shape)
    (high, wide), (down, across) = counts(shape), tile_of(shape)
    y = torch.bmm(matrix, _input_tiles(x, shape, reach)).view(-1, down, across, x.shape[0], high, wide)
    y = y.permute(3, 0, 4, 1, 5, 2).reshape(x.shape[0], -1, down * high, across * wide)
    y = y[:, :, : shape.out[0], : shape.out[1]].contiguous()
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Pair, shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): transposed M times dy's tiles, overlaps added by `fold`."""
    channels, (high, wide), tile = shape.groups, counts(shape), tile_of(shape)
    matrix, reach = _matrix(weight, channels, shape)
    tiles = torch.bmm(matrix.transpose(1, 2), _output_tiles(dy, channels, shape))
    columns = tiles.view(-1, dy.shape[0], high * wide).transpose(0, 1)
    step = (tile[0] * shape.stride[0], tile[1] * shape.stride[1])
    room = ((high - 1) * step[0] + reach[0], (wide - 1) * step[1] + reach[1])
    whole = functional.fold(columns.contiguous(), room, reach, stride=step)
    return padded(whole, -shape.padding[0], -shape.padding[1], *size)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: the tiles of dy times those of x, transposed, gathered tap by tap out of M."""
    places, reach = _places(shape.kernel, shape.stride, shape.dilation, tile_of(shape), x.dtype, x.device)
    dm = torch.bmm(_output_tiles(dy, x.shape[1], shape), _input_tiles(x, shape, reach).transpose(1, 2))
    return torch.mm(dm.view(dy.shape[1], -1), places.t()).view(dy.shape[1], 1, *shape.kernel)
