"""Depthwise convolution: each channel's kernel becomes the small matrix from a window of input to a tile of output.

The windows overlap, the tiles lie side by side. So y (C, tile, count) = M (C, tile, window) @ windows of x (C, window,
count), one batched product for all channels instead of a product a channel; M holds every tap where its output finds it
and zeros between. The input's gradient is the same from windows of dy to tiles of dx, whatever the stride.

Source: the tiles are those of winograd.py without its transforms, as depthwise kernels sum over no channels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Tuple

import torch

from . import sums
from .layout_copy import rearranged
from .padding import padded, windows

if TYPE_CHECKING:
    from .geometry import Geometry

    Pair = Tuple[int, int]

FORWARD, INPUT = "forward", "input"
TILES = (8, 7, 6, 5, 4)
SMALLEST = 4
LARGE = (10, 12, 14)
"""Tiles of dx where none of TILES divides it and is a multiple of the stride."""


class Axis(NamedTuple):
    """How one axis falls into tiles, each made of a window."""

    tile: int
    count: int
    window: int
    step: int
    """From one window to the next."""
    before: int
    """Zeros before the first window; less than none where the input's first lines are used by no window."""


def forward_axis(shape: Geometry, axis: int) -> Axis:
    """Return how an axis of the output is made: the largest tile of TILES that divides it, 4 where none does."""
    out, stride, kernel = shape.out[axis], shape.stride[axis], shape.kernel[axis]
    tile = next((tile for tile in TILES if out % tile == 0), SMALLEST)
    window = (tile - 1) * stride + shape.dilation[axis] * (kernel - 1) + 1
    return Axis(tile, -(-out // tile), window, tile * stride, shape.padding[axis])


def gradient_axis(shape: Geometry, axis: int, size: int) -> Axis:
    """Return how an axis of dx, `size` long, is made of dy: in tiles that are multiples of the stride."""
    stride, padding = shape.stride[axis], shape.padding[axis]
    reach = shape.dilation[axis] * (shape.kernel[axis] - 1)
    tile = next((tile for tile in (*TILES, *LARGE) if size % tile == 0 and tile % stride == 0), 0)
    tile = tile or -(-SMALLEST // stride) * stride
    first, last = -((reach - padding) // stride), (tile - 1 + padding) // stride
    return Axis(tile, -(-size // tile), last - first + 1, tile // stride, -first)


@lru_cache(maxsize=1024)
def forward_axes(shape: Geometry) -> Tuple[Axis, Axis]:
    """Return both axes of the output."""
    return forward_axis(shape, 0), forward_axis(shape, 1)


@lru_cache(maxsize=1024)
def gradient_axes(shape: Geometry, size: Pair) -> Tuple[Axis, Axis]:
    """Return both axes of an input of `size` (H, W)."""
    return gradient_axis(shape, 0, size[0]), gradient_axis(shape, 1, size[1])


@lru_cache(maxsize=128)
def _place_taps(
    shape: Geometry, axes: Tuple[Axis, Axis], pass_: str, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the matrix (kh*kw, tile * window) of ones that puts taps into M, for that pass."""
    made = []
    for axis, (stride, padding, spread, taps) in zip(
        axes, zip(shape.stride, shape.padding, shape.dilation, shape.kernel)
    ):
        ones = torch.zeros(taps, axis.tile, axis.window)
        for tap in range(taps):
            for out in range(axis.tile):
                at = out * stride + tap * spread
                if pass_ == INPUT:
                    at, off = divmod(out + padding - tap * spread, stride)
                    at = -1 if off else at + axis.before
                if 0 <= at < axis.window:
                    ones[tap, out, at] = 1.0
        made.append(ones)
    matrix = torch.einsum("iam,jbn->ijabmn", *made).reshape(shape.kernel[0] * shape.kernel[1], -1)
    return matrix.to(device=device, dtype=dtype)


def _gather_windows(x: torch.Tensor, channels: int, axes: Tuple[Axis, Axis]) -> torch.Tensor:
    """Return the windows as (channels, N * count, maps a channel * window)."""
    down, across = axes
    height, width = ((axis.count - 1) * axis.step + axis.window for axis in axes)
    room = padded(x, down.before, across.before, height, width)
    view = windows(room, (down.window, across.window), (down.step, across.step), (1, 1))
    count = x.shape[0] * down.count * across.count
    if x.shape[1] == channels:
        return rearranged(view, (1, 0, 4, 5, 2, 3)).view(channels, count, -1)
    view = view.unflatten(1, (channels, -1))
    return rearranged(view, (1, 0, 5, 6, 2, 3, 4)).view(channels, count, -1)


def _gather_tiles(dy: torch.Tensor, channels: int, axes: Tuple[Axis, Axis]) -> torch.Tensor:
    """Return the tiles of `dy` as (channels, N * count, maps a channel * tile)."""
    down, across = axes
    room = padded(dy, 0, 0, down.tile * down.count, across.tile * across.count)
    view = room.view(dy.shape[0], channels, -1, down.count, down.tile, across.count, across.tile)
    return rearranged(view, (1, 0, 3, 5, 2, 4, 6)).view(channels, dy.shape[0] * down.count * across.count, -1)


def _tiles_to_maps(tiles: torch.Tensor, batch: int, axes: Tuple[Axis, Axis], size: Pair) -> torch.Tensor:
    """Return tiles as contiguous maps (N, channels, *size)."""
    down, across = axes
    view = tiles.view(tiles.shape[0], batch, down.count, across.count, -1, down.tile, across.tile)
    maps = rearranged(view, (1, 0, 4, 2, 5, 3, 6)).view(batch, -1, down.tile * down.count, across.tile * across.count)
    return maps[:, :, : size[0], : size[1]].contiguous()


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve; a channel may have several outputs.

    Workspace: the windows, 100/64 of the input for a 3x3 kernel of stride 1 in tiles of 8x8, and the output once more.
    """
    axes, channels = forward_axes(shape), x.shape[1]
    places = _place_taps(shape, axes, FORWARD, x.dtype, x.device)
    matrix = torch.mm(weight.reshape(weight.shape[0], -1), places).view(channels, -1, axes[0].window * axes[1].window)
    y = _tiles_to_maps(
        torch.bmm(_gather_windows(x, channels, axes), matrix.transpose(1, 2)), x.shape[0], axes, shape.out
    )
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Pair, shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W); nothing is scattered. Workspace: dy's windows, dx once more."""
    size = (size[0], size[1])
    axes, channels, outputs = gradient_axes(shape, size), shape.groups, weight.shape[0] // shape.groups
    places = _place_taps(shape, axes, INPUT, dy.dtype, dy.device)
    tile, window = axes[0].tile * axes[1].tile, axes[0].window * axes[1].window
    matrix = torch.mm(weight.reshape(weight.shape[0], -1), places).view(channels, outputs, tile, window)
    if outputs > 1:
        matrix = matrix.transpose(1, 2)
    matrix = matrix.reshape(channels, tile, outputs * window)
    return _tiles_to_maps(
        torch.bmm(_gather_windows(dy, channels, axes), matrix.transpose(1, 2)), dy.shape[0], axes, size
    )


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: the tiles of dy times windows of x, transposed, gathered tap by tap out of M's.

    Every tap is a sum over all of a tile's entries of M's, which of halves are float32, as the gradient is. Workspace:
    as `forward`, and dy once more.
    """
    axes, (dy, x) = forward_axes(shape), sums.wide(dy, x)
    dm = sums.product(_gather_tiles(dy, x.shape[1], axes).transpose(1, 2), _gather_windows(x, x.shape[1], axes))
    places = _place_taps(shape, axes, FORWARD, dm.dtype, x.device)
    return torch.mm(dm.view(dy.shape[1], -1), places.t()).view(dy.shape[1], 1, *shape.kernel)


def both_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of input and weight where a channel has one output; dy's windows serve both.

    dx as in `input_gradient`; its M's gradient is the tiles of x times dy's windows, transposed, of halves in float32.
    """
    axes, channels = gradient_axes(shape, (x.shape[2], x.shape[3])), shape.groups
    places = _place_taps(shape, axes, INPUT, dy.dtype, dy.device)
    tile, low = axes[0].tile * axes[1].tile, _gather_windows(dy, channels, axes)
    matrix = torch.mm(weight.reshape(channels, -1), places).view(channels, tile, -1)
    dm = sums.product(_gather_tiles(x, channels, axes).transpose(1, 2), low).view(channels, -1)
    dw = torch.mm(dm, _place_taps(shape, axes, INPUT, dm.dtype, dy.device).t()).view(channels, 1, *shape.kernel)
    dx = _tiles_to_maps(torch.bmm(low, matrix.transpose(1, 2)), x.shape[0], axes, (x.shape[2], x.shape[3]))
    return dx, dw
