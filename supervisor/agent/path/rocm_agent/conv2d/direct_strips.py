"""direct.py's and subpixel.py's passes on a CPU, a few rows of output at a time, whose lowered rows its caches hold.

A sample's lowered rows are kw / stride times as large as it: written to memory and read again, they cost a first
layer as much as its products.

Source: as direct.py and subpixel.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, Tuple

import torch

from .mec import turned
from .padding import span
from .subpixel import phases, taps

if TYPE_CHECKING:
    from .geometry import Geometry

STRIP = 1 << 18
"""Elements of a strip's lowered rows: 1 MiB of float32."""


def rows_of_strip(channels: int, kernel: Tuple[int, int], stride: int, size: Tuple[int, int]) -> int:
    """Return how many rows of `size` (height, width) are made at a time, about as many in each strip."""
    lines = STRIP // (kernel[1] * channels * size[1])
    strips = -(-size[0] // max(1, (lines - kernel[0]) // stride + 1))
    return -(-size[0] // strips)


class _Strips:
    """The lowered rows of a batch, a strip at a time."""

    def __init__(  # noqa: PLR0913, PLR0917 - a convolution's geometry
        self,
        x: torch.Tensor,
        kernel: Tuple[int, int],
        stride: Tuple[int, int],
        padding: Tuple[int, int],
        dilation: int,
        size: Tuple[int, int],
    ) -> None:
        """Lower `x` for a result of `size`. Zeros that are left and right of it are the same in every strip."""
        self._x, self._kernel, self._stride, self._padding, self._size = x, kernel, stride, padding, size
        self._dilation = dilation
        self.rows = rows_of_strip(x.shape[1], kernel, stride[0], size)
        lines = (self.rows - 1) * stride[0] + kernel[0]
        self._low = x.new_zeros((lines, kernel[1], x.shape[1], size[1]))

    def windows(self) -> Iterator[Tuple[int, int, int, torch.Tensor]]:
        """Yield each strip's sample, first row, end, and windows (rows, kh*kw*C, W), valid until the next strip's."""
        (kh, kw), (height, width), channels = self._kernel, self._size, self._x.shape[1]
        line = kw * channels * width
        for sample, image in enumerate(self._x):
            rows = image.transpose(0, 1)
            for row in range(0, height, self.rows):
                end = min(height, row + self.rows)
                self._lower_rows(rows, row * self._stride[0] - self._padding[0], (end - row - 1) * self._stride[0] + kh)
                strides = (self._stride[0] * line, width, 1)
                yield sample, row, end, self._low.as_strided((end - row, kh * kw * channels, width), strides)

    def _lower_rows(self, rows: torch.Tensor, first: int, lines: int) -> None:
        """Lower `lines` of the image's rows (H, C, W) from row `first` on, which may lie outside."""
        begin, end = min(max(0, -first), lines), max(0, min(lines, rows.shape[0] - first))
        self._low[:begin].zero_()
        self._low[end:lines].zero_()
        step = self._stride[1]
        for tap in range(self._kernel[1]):
            start = tap * self._dilation - self._padding[1]
            left, right = span(start, step, rows.shape[2], self._size[1])
            if left < right and begin < end:
                at = start + left * step
                source = rows[first + begin : first + end, :, at : at + (right - left - 1) * step + 1 : step]
                self._low[begin:end, tap, :, left:right].copy_(source)


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve. Workspace: a strip's lowered rows."""
    strips = _Strips(x, shape.kernel, shape.stride, shape.padding, shape.dilation[1], shape.out)
    flat = weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)
    y = _multiply(strips, flat, x.new_empty((x.shape[0], weight.shape[0], *shape.out)))
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W), for stride 1: dy convolved with the turned weight."""
    (kh, kw), (ph, pw), dilation = shape.kernel, shape.padding, shape.dilation[1]
    around = (kh - 1 - ph, dilation * (kw - 1) - pw)
    strips = _Strips(dy, shape.kernel, (1, 1), around, dilation, (size[0], size[1]))
    return _multiply(strips, turned(weight), dy.new_empty((dy.shape[0], weight.shape[1], *size)))


def _multiply(strips: _Strips, flat: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for sample, row, end, windows in strips.windows():
        torch.bmm(flat.expand(end - row, -1, -1), windows, out=out[sample, :, row:end].transpose(0, 1))
    return out


def strided_input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry
) -> torch.Tensor:
    """Return what `subpixel.input_gradient` returns. Workspace: a strip's lowered rows of dy, and its rows of dx."""
    (sh, sw), channels = shape.stride, weight.shape[1]
    (down, _, up), (across, _, left) = (taps(k, s, p) for k, s, p in zip(shape.kernel, shape.stride, shape.padding))
    high, wide = -(-size[0] // sh), -(-size[1] // sw)
    flat = phases(weight, shape).reshape(sh * sw * channels, -1)
    strips = _Strips(dy, (down, across), (1, 1), (up, left), 1, (high, wide))
    made = dy.new_empty((strips.rows, flat.shape[0], wide))
    dx = dy.new_empty((dy.shape[0], channels, *size))
    for sample, row, end, windows in strips.windows():
        rows = end - row
        product = torch.bmm(flat.expand(rows, -1, -1), windows, out=made[:rows])
        images = product.view(rows, sh, sw, channels, wide).permute(3, 0, 1, 4, 2)
        part = dx[sample, :, row * sh : end * sh]
        if part.shape[1:] == (rows * sh, wide * sw):
            part.unflatten(2, (wide, sw)).unflatten(1, (rows, sh)).copy_(images)
        else:
            part.copy_(images.reshape(channels, rows * sh, wide * sw)[:, : part.shape[1], : part.shape[2]])
    return dx


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: per output row, dy's (O, Wo) times its window's transpose, over samples and rows.

    The strips' shares are added in the operands' dtype: not for half precision. Workspace: a strip's lowered rows, and
    a weight a row of it.
    """
    strips = _Strips(x, shape.kernel, shape.stride, shape.padding, shape.dilation[1], shape.out)
    parts = x.new_zeros((strips.rows, dy.shape[1], shape.kernel[0] * shape.kernel[1] * x.shape[1]))
    for sample, row, end, windows in strips.windows():
        parts[: end - row].baddbmm_(dy[sample, :, row:end].transpose(0, 1), windows.transpose(1, 2))
    return parts.sum(0).view(dy.shape[1], *shape.kernel, x.shape[1]).permute(0, 3, 1, 2).contiguous()
