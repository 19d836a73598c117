"""Winograd's F(4x4, 3x3) on a CPU: winograd.py's passes over strips of tiles that its caches hold.

All tiles at once are several buffers of 2.25 times the input. Each is written to memory and read from it again, and its
pages are new to the process at nearly every call, which costs a CPU more than the products. Here a few rows of tiles at
a time, or a few samples where those are small, go through all steps in buffers that are made once a pass.

Source: as winograd.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, NamedTuple, Tuple

import torch

from .winograd import transforms

if TYPE_CHECKING:
    from .geometry import Geometry

STRIP = 1 << 19
"""Elements of the largest buffer of a strip: 2 MiB of float32."""
LEAST = 128
"""Tiles of a strip, of deep layers too: with fewer, a product's matrices are too narrow."""


class Strips(NamedTuple):
    """How the tiles of a batch are divided: so many samples and rows of tiles at a time, of so many tiles a row."""

    samples: int
    rows: int
    high: int
    wide: int

    @classmethod
    def of(cls, batch: int, channels: int, size: Tuple[int, int]) -> Strips:
        """Return the division of `batch` maps of `size`; `channels`: the larger of the two numbers of maps."""
        high, wide = -(-size[0] // 4), -(-size[1] // 4)
        most = max(LEAST, STRIP // (36 * channels))
        if high * wide <= most:
            strips = -(-batch // (most // (high * wide)))
            return cls(-(-batch // strips), high, high, wide)
        strips = -(-high // max(1, most // wide))
        return cls(1, -(-high // strips), high, wide)

    @property
    def tiles(self) -> int:
        """Return the tiles of a whole strip."""
        return self.samples * self.rows * self.wide

    def parts(self, batch: int) -> Iterator[Tuple[slice, slice]]:
        """Yield each strip's samples and rows of tiles."""
        for sample in range(0, batch, self.samples):
            for row in range(0, self.high, self.rows):
                yield slice(sample, min(batch, sample + self.samples)), slice(row, min(self.high, row + self.rows))


class _Tiles:
    """The transformed 6x6 tiles of an input, a strip at a time."""

    def __init__(self, x: torch.Tensor, top: int, left: int, strips: Strips) -> None:
        self._x, self._top, self._left = x, top, left
        self._matrix = transforms(x.dtype, x.device)[0]
        self._room = x.new_zeros((strips.samples, x.shape[1], 4 * strips.rows + 2, 4 * strips.wide + 2))
        self._gathered, self._made = (x.new_empty(36 * x.shape[1] * strips.tiles) for _ in range(2))

    def transformed(self, samples: slice, rows: slice) -> torch.Tensor:
        """Return a strip's tiles, (36, C, tiles), valid until the next strip's."""
        count, channels = samples.stop - samples.start, self._x.shape[1]
        high, first = 4 * (rows.stop - rows.start) + 2, 4 * rows.start - self._top
        room, height, width = self._room[:count, :, :high], self._x.shape[2], self._x.shape[3]
        begin, end = max(0, -first), min(high, height - first)
        room[:, :, :begin].zero_()
        room[:, :, end:].zero_()
        inside = room[:, :, begin:end, self._left : self._left + width]
        inside.copy_(self._x[samples, :, first + begin : first + end])
        windows = room.unfold(2, 6, 4).unfold(3, 6, 4).permute(4, 5, 1, 0, 2, 3)
        gathered = self._gathered[: windows.numel()]
        gathered.view(windows.shape).copy_(windows)
        made = self._made[: windows.numel()].view(36, -1)
        return torch.mm(self._matrix, gathered.view(36, -1), out=made).view(36, channels, -1)


def _convolve_strips(  # noqa: PLR0913, PLR0917 - a convolution's operands
    x: torch.Tensor, lines: torch.Tensor, bias: torch.Tensor | None, top: int, left: int, size: Tuple[int, int]
) -> torch.Tensor:
    """Return the convolution to `size`, (N, O, *size); `lines` is the transformed weight (36, O, C)."""
    batch, outputs = x.shape[0], lines.shape[1]
    strips = Strips.of(batch, max(x.shape[1], outputs), size)
    tiles, matrix = _Tiles(x, top, left, strips), transforms(x.dtype, x.device)[2]
    products, results = (x.new_empty(number * outputs * strips.tiles) for number in (36, 16))
    y = x.new_empty((batch, outputs, *size))
    for samples, rows in strips.parts(batch):
        low = tiles.transformed(samples, rows)
        product = torch.bmm(lines, low, out=products[: 36 * outputs * low.shape[2]].view(36, outputs, -1))
        made = results[: 16 * outputs * low.shape[2]].view(16, -1)
        torch.mm(matrix, product.view(36, -1), out=made)
        count, high = samples.stop - samples.start, rows.stop - rows.start
        maps = made.view(4, 4, outputs, count, high, strips.wide).permute(3, 2, 4, 0, 5, 1)
        part = y[samples, :, 4 * rows.start : 4 * rows.stop]
        if part.shape[2:] == (4 * high, 4 * strips.wide):
            part.unflatten(3, (strips.wide, 4)).unflatten(2, (high, 4)).copy_(maps)
        else:
            part.copy_(maps.reshape(count, outputs, 4 * high, 4 * strips.wide)[:, :, : part.shape[2], : part.shape[3]])
        if bias is not None:
            part.add_(bias.view(-1, 1, 1))
    return y


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve. Workspace: the transformed weight twice, and a strip's tiles of x twice and of y once, and y's."""
    kernel = transforms(x.dtype, x.device)[1]
    lines = torch.mm(kernel, weight.reshape(-1, 9).t()).view(36, *weight.shape[:2])
    return _convolve_strips(x, lines, bias, *shape.padding, shape.out)


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): dy convolved with the turned weight; padding at most 2.

    Turning the weight is reading the kernel's nine taps from the last to the first.
    """
    kernel = transforms(dy.dtype, dy.device)[1].flip(1)
    lines = torch.mm(kernel, weight.reshape(-1, 9).t()).view(36, *weight.shape[:2]).transpose(1, 2)
    return _convolve_strips(dy, lines, None, 2 - shape.padding[0], 2 - shape.padding[1], size)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: per strip 36 products (O, tiles) by (tiles, C), added up."""
    (batch, outputs, height, width), channels = dy.shape, x.shape[1]
    strips = Strips.of(batch, max(channels, outputs), (height, width))
    tiles, (_, kernel, output) = _Tiles(x, *shape.padding, strips), transforms(x.dtype, x.device)
    gathered, made = (x.new_empty(number * outputs * strips.tiles) for number in (16, 36))
    edge = (4 * strips.high, 4 * strips.wide) != (height, width)
    lines = x.new_zeros((36, outputs, channels))
    for samples, rows in strips.parts(batch):
        low, high = tiles.transformed(samples, rows), rows.stop - rows.start
        part = dy[samples, :, 4 * rows.start : 4 * rows.stop]
        if edge:
            part = torch.constant_pad_nd(part, (0, 4 * strips.wide - width, 0, 4 * high - part.shape[2]))
        maps = part.unflatten(3, (strips.wide, 4)).unflatten(2, (high, 4)).permute(3, 5, 1, 0, 2, 4)
        flat = gathered[: maps.numel()]
        flat.view(maps.shape).copy_(maps)
        wide = made[: 36 * outputs * low.shape[2]].view(36, -1)
        torch.mm(output.t(), flat.view(16, -1), out=wide)
        lines.baddbmm_(wide.view(36, outputs, -1), low.transpose(1, 2))
    dw = torch.mm(kernel.t(), lines.view(36, -1)).view(3, 3, outputs, channels)
    return dw.permute(2, 3, 0, 1).contiguous()
