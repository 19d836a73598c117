"""Convolution of stride 1 without lowering: MEC's rows, and a shift of the columns for each tap of a row.

Cheaper than MEC where the lowered copy costs more than kw passes over the output, as with few channels in float32 on a
GPU. Half precision would round at each of the kw additions, and is not sent here. For one group, rows undilated.

Source: as mec.py, without its lowering; kn2row (Anderson et al., arXiv 1709.03395) shifts complete maps in this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Tuple

import torch

from . import sums
from .device import processors
from .layout_copy import copied
from .mec import written
from .subpixel import phases, pixels, taps

if TYPE_CHECKING:
    from .geometry import Geometry


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolve: for each of the kw taps, weight (O, kh*C) times the overlapping rows (kh*C, N*width), shifted by it.

    The rows keep their padding, so each product also computes the columns that reach over a sample's edge; the copy to
    NCHW leaves them out. Workspace: the padded input once, the output once more.
    """
    return written(products(x, weight, shape.padding, shape.out, shape.dilation[1]), bias, out)


SMALL_A_PROCESSOR = 1 << 17
"""Elements per processor below which zeros everywhere are cheaper than zeros in four places."""


class Pitch(NamedTuple):
    """How a row of N samples lies in memory: [zeros | sample] N times, zeros; in multiples of 16 bytes.

    The zeros before a sample serve the one before it as well.
    """

    margin: int
    sample: int
    """From one sample to the next."""
    start: int
    """Where the first tap of the first output column lies."""
    columns: int
    """Columns that are computed: all samples', and what lies between them."""
    line: int


def pitch(  # noqa: PLR0913, PLR0917 - a row's sizes
    batch: int, width: int, wo: int, spread: int, left: int, size: int
) -> Pitch:
    """Return the layout for rows of `width` and `wo` outputs, `left` zeros before; elements are `size` bytes wide."""
    unit = max(1, 16 // size)
    right = max(0, wo + spread - left - width)
    margin, sample, columns = (-(-number // unit) * unit for number in (max(left, right), width, wo))
    sample += margin
    columns += (batch - 1) * sample
    return Pitch(margin, sample, margin - left, columns, batch * sample + -(-(right + unit) // unit) * unit)


def placed(  # noqa: PLR0913, PLR0917 - the same
    x: torch.Tensor, top: int, rows: int, margin: int, sample: int, line: int
) -> torch.Tensor:
    """Return (rows, C, line), zeros but for x: from row `top`, after `margin`, its samples `sample` apart."""
    batch, channels, height, width = x.shape
    end, strides = min(rows, top + height), (channels * line, line, sample, 1)
    out = x.new_empty((rows, channels, line))
    offset = top * channels * line + margin
    if out.numel() < SMALL_A_PROCESSOR * processors(x.device):
        out.zero_()
    else:
        out[:top].zero_()
        out[end:].zero_()
        out[top:end, :, :margin].zero_()
        out[top:end, :, margin + (batch - 1) * sample + width :].zero_()
        if sample > width:
            out.as_strided((end - top, channels, batch - 1, sample - width), strides, offset + width).zero_()
    view = out.as_strided((end - top, channels, batch, width), strides, offset)
    copied(view, x[:, :, : end - top].permute(2, 1, 0, 3))
    return out


def products(
    x: torch.Tensor, weight: torch.Tensor, before: Tuple[int, int], size: Tuple[int, int], spread: int
) -> torch.Tensor:
    """Return the convolution to `size` as a view (N, O, *size); `before` are the zeros above and left of x.

    `spread` is from one tap of a row to the next.
    """
    (kh, kw), (ho, wo), batch, channels = weight.shape[2:], size, x.shape[0], x.shape[1]
    out_channels, lines = weight.shape[0], kh * channels
    at = pitch(batch, x.shape[3], wo, spread * (kw - 1), before[1], x.element_size())
    low = placed(x, before[0], ho + kh - 1, at.margin, at.sample, at.line)
    flats = weight.permute(3, 0, 2, 1).reshape(kw, out_channels, lines)
    y = None
    for tap in range(kw):
        flat = flats[tap].expand(ho, -1, -1)
        size_, strides = (ho, lines, at.columns), (channels * at.line, at.line, 1)
        part = low.as_strided(size_, strides, at.start + tap * spread)
        y = torch.bmm(flat, part) if y is None else y.baddbmm_(flat, part)
    assert y is not None
    return y.as_strided((batch, out_channels, ho, wo), (at.sample, at.columns, out_channels * at.columns, 1))


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): dy convolved with the turned weight. Workspace: dy and dx."""
    (kh, kw), spread = shape.kernel, shape.dilation[1]
    before = (kh - 1 - shape.padding[0], spread * (kw - 1) - shape.padding[1])
    return written(products(dy, weight.flip(2, 3).transpose(0, 1), before, size, spread), None, out)


def strided_input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return what `subpixel.input_gradient` returns, by shifts in place of lowered columns. Workspace: dy and dx."""
    (height, width), (sh, sw), (kh, kw), (ph, pw) = size, shape.stride, shape.kernel, shape.padding
    before = (taps(kh, sh, ph)[2], taps(kw, sw, pw)[2])
    cut = (-(-height // sh), -(-width // sw))
    flat = phases(weight, shape).flatten(0, 2)
    view = products(dy, flat.permute(0, 3, 1, 2), before, cut, 1)
    view = view.view(dy.shape[0], sh, sw, weight.shape[1], *cut)
    return pixels(view.permute(0, 3, 4, 1, 5, 2), size, out)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: per tap of a row, dy's rows times the transposed rows of x, shifted by it.

    Zeros next to dy's rows meet the columns that reach over a sample's edge. Workspace: x, dy and Ho weights.
    """
    (kh, kw), (ho, wo), spread = shape.kernel, shape.out, shape.dilation[1]
    batch, channels, out_channels = x.shape[0], x.shape[1], dy.shape[1]
    at, lines = pitch(batch, x.shape[3], wo, spread * (kw - 1), shape.padding[1], x.element_size()), kh * channels
    low = placed(x, shape.padding[0], ho + kh - 1, at.margin, at.sample, at.line)
    rows = placed(dy, 0, ho, 0, at.sample, at.columns)
    dw = x.new_empty((out_channels, channels, kh, kw))
    for tap in range(kw):
        part = low.as_strided((ho, lines, at.columns), (channels * at.line, at.line, 1), at.start + tap * spread)
        summed = sums.product(rows, part.transpose(1, 2)).sum(0)
        dw[:, :, :, tap] = summed.view(out_channels, kh, channels).transpose(1, 2)
    return dw
