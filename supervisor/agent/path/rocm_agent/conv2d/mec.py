"""Convolution lowered along the width only (MEC): the windows of its rows overlap in memory. One group, rows undilated.

`torch.bmm` does not copy an operand whose batch stride is smaller than one matrix: so one product a row of output reads
its kh rows straight out of the lowered tensor, and nothing is lowered along the height.

Source: Cho and Brand, "MEC: Memory-efficient Convolution for Deep Neural Network", ICML 2017, arXiv 1706.06873. The
backward passes and the use of overlapping operands of torch.bmm are this package's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

import torch

from . import sums
from .device import processors
from .layout_copy import copied, rearranged
from .padding import padded, span

if TYPE_CHECKING:
    from .geometry import Geometry

FEW_A_PROCESSOR = 1 << 17
"""Lowered elements per processor below which one pass more over the data is cheaper than ten operators more."""


def lowered(  # noqa: PLR0913, PLR0917 - one axis' sizes after the other
    x: torch.Tensor, top: int, left: int, rows: int, columns: int, taps: int, stride: int, dilation: int
) -> torch.Tensor:
    """Return T (rows, taps, C, N*columns): T[h, j, c, n, w] = x[n, c, h - top, w*stride + j*dilation - left], else 0.

    Workspace: rows * taps * columns * C * N elements, for a 3x3 kernel 3 times the input at stride 1, 1.5 at stride 2.
    """
    batch, channels, height, width = x.shape
    if rows * taps * channels * batch * columns < FEW_A_PROCESSOR * processors(x.device):
        return _lowered_in_two(x, top, left, rows, columns, taps, stride, dilation)
    out = x.new_empty((rows, taps, channels, batch, columns))
    first, end = max(0, top), min(rows, top + height)
    out[:first].zero_()
    out[end:].zero_()
    source = x[:, :, first - top : end - top].permute(2, 1, 0, 3)
    for tap in range(taps):
        start = tap * dilation - left
        begin, stop = span(start, stride, width, columns)
        part = out[first:end, tap]
        if begin > 0 or stop == 0:
            part[..., : begin or columns].zero_()
        if 0 < stop < columns:
            part[..., stop:].zero_()
        if stop:
            at = start + begin * stride
            copied(part[..., begin:stop], source[..., at : at + (stop - begin - 1) * stride + 1 : stride])
    return out.view(rows, taps, channels, batch * columns)


def _lowered_in_two(  # noqa: PLR0913, PLR0917 - lowered's own
    x: torch.Tensor, top: int, left: int, rows: int, columns: int, taps: int, stride: int, dilation: int
) -> torch.Tensor:
    """Do the same with the fewest operators: one padded copy, and one gather from it."""
    batch, channels, _, _ = x.shape
    wide = (columns - 1) * stride + (taps - 1) * dilation + 1
    x = padded(x, top, left, rows, wide)
    plane = rows * wide
    view = x.as_strided((rows, taps, channels, batch, columns), (wide, dilation, plane, channels * plane, stride))
    # Not reshape: of one sample it would return a view, whose windows do not overlap as they must.
    return view.contiguous().view(rows, taps, channels, batch * columns)


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """Return (N, C, H, W) as (H, C, N*W), copied."""
    return rearranged(x, (2, 1, 0, 3)).view(x.shape[2], x.shape[1], x.shape[0] * x.shape[3])


def overlapping(low: torch.Tensor, taps: int, stride: int, rows: int) -> torch.Tensor:
    """Return the view (rows, taps * low's rows, N*columns): a window of `taps` lines of `low` for each output row."""
    _, wide, channels, columns = low.shape
    line = wide * channels * columns
    return low.as_strided((rows, taps * wide * channels, columns), (stride * line, columns, 1))


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolve with one bmm: weight (O, kh*kw*C) times the Ho overlapping windows (kh*kw*C, N*Wo) of T.

    The inner dimension is undivided, so half precision rounds once. Workspace: T and the output once more, as rows.
    """
    (kh, kw), (sh, sw), (ho, wo), out_channels = shape.kernel, shape.stride, shape.out, weight.shape[0]
    low = lowered(x, *shape.padding, (ho - 1) * sh + kh, wo, kw, sw, shape.dilation[1])
    flat = weight.permute(0, 2, 3, 1).reshape(out_channels, -1)
    y = torch.bmm(flat.expand(ho, -1, -1), overlapping(low, kh, sh, ho))
    del low
    return images(y, x.shape[0], bias, out)


def images(rows: torch.Tensor, batch: int, bias: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return (H, C, N*W) as contiguous (N, C, H, W), in `out` if given, the bias added on the way."""
    height, channels, _ = rows.shape
    return written(rows.view(height, channels, batch, -1).permute(2, 1, 0, 3), bias, out)


def written(view: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None) -> torch.Tensor:
    """Return `view` (N, C, H, W) contiguous, in `out` if given, the bias added on the way."""
    made = view.new_empty(view.shape) if out is None else out
    return copied(made, view) if bias is None else torch.add(view, bias.view(-1, 1, 1), out=made)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: per output row, dy (O, N*Wo) times its window's transpose, summed over the rows.

    The product a row splits the long inner dimension N*Ho*Wo, which BLAS libraries rarely do for the narrow matrices
    of first layers. Of halves the gradient is float32. Workspace: T, dy as rows, Ho weights.
    """
    dy, x = sums.wide(dy, x)
    (kh, kw), (sh, sw), (ho, wo) = shape.kernel, shape.stride, shape.out
    low = lowered(x, *shape.padding, (ho - 1) * sh + kh, wo, kw, sw, shape.dilation[1])
    parts = sums.product(rows_of(dy), overlapping(low, kh, sh, ho).transpose(1, 2))
    return parts.sum(0).view(dy.shape[1], kh, kw, x.shape[1]).permute(0, 3, 1, 2).contiguous()


def both_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry, out: torch.Tensor | None = None
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of input and weight of a convolution of stride 1, padded by at most its kernel's reach.

    dy is lowered once, as D (H + kh - 1, kw, O, N*W), and serves both: dx is the turned weight (C, kh*kw*O) times D's
    windows; dW, turned, is x (C, N*W) times their transposes, summed over the rows. Neither lowers x nor folds. Of
    halves dW is float32.
    """
    low = lowered_gradient(dy, x.shape[2], x.shape[3], shape)
    view = overlapping(low, shape.kernel[0], 1, x.shape[2])
    parts = sums.product(rows_of(x), view.transpose(1, 2)).sum(0)
    dw = parts.view(x.shape[1], *shape.kernel, dy.shape[1]).flip(1, 2).permute(3, 0, 1, 2).contiguous()
    dx = torch.bmm(turned(weight).expand(x.shape[2], -1, -1), view)
    del low, view
    return images(dx, dy.shape[0], None, out), dw


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the input's gradient alone, as in `both_gradients`."""
    view = overlapping(lowered_gradient(dy, *size, shape), shape.kernel[0], 1, size[0])
    return images(torch.bmm(turned(weight).expand(size[0], -1, -1), view), dy.shape[0], None, out)


def lowered_gradient(dy: torch.Tensor, height: int, width: int, shape: Geometry) -> torch.Tensor:
    """Return D (height + kh - 1, kw, O, N*width): dy of a convolution of stride 1, lowered for its input's gradient."""
    (kh, kw), (ph, pw), dilation = shape.kernel, shape.padding, shape.dilation[1]
    return lowered(dy, kh - 1 - ph, dilation * (kw - 1) - pw, height + kh - 1, width, kw, 1, dilation)


def turned(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight turned by 180 degrees as (C, kh*kw*O)."""
    return weight.flip(2, 3).permute(1, 2, 3, 0).reshape(weight.shape[1], -1)
