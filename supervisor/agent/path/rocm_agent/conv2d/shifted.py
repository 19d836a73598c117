"""Convolution of stride 1 with nothing lowered at all: MEC's rows, and a shift of the columns for each tap of a row.

Cheaper than MEC where the lowered copy costs more than kw passes over the output, as with few channels in float32 on a
card. Half precision would round at each of the kw additions, and is not sent here. For one group, rows undilated.

Source: as mec.py, without its lowering; kn2row (Anderson et al., arXiv 1709.03395) shifts whole maps in this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

import torch

from .mec import lowered
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
    view = products(x, weight, shape.padding, shape.out, shape.dilation[1])
    if bias is None:
        return view.contiguous() if out is None else out.copy_(view)
    return torch.add(view, bias.view(-1, 1, 1), out=x.new_empty(view.shape) if out is None else out)


def products(
    x: torch.Tensor, weight: torch.Tensor, before: Tuple[int, int], size: Tuple[int, int], spread: int
) -> torch.Tensor:
    """Return the convolution to `size` as a view (N, O, *size); `before` are the zeros above and left of x."""
    (kh, kw), (ho, wo), batch, channels = weight.shape[2:], size, x.shape[0], x.shape[1]
    wide, out_channels, lines = wo + spread * (kw - 1), weight.shape[0], kh * channels
    low = lowered(x, *before, ho + kh - 1, wide, 1, 1, 1)
    line, columns = batch * wide, batch * wide - spread * (kw - 1)
    flats = weight.permute(3, 0, 2, 1).reshape(kw, out_channels, lines)
    y = None
    for tap in range(kw):
        flat = flats[tap].expand(ho, -1, -1)
        part = low.as_strided((ho, lines, columns), (channels * line, line, 1), tap * spread)
        y = torch.bmm(flat, part) if y is None else y.baddbmm_(flat, part)
    assert y is not None
    return y.as_strided((batch, out_channels, ho, wo), (wide, columns, out_channels * columns, 1))


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W): dy convolved with the turned weight. Workspace: dy and dx."""
    (kh, kw), spread = shape.kernel, shape.dilation[1]
    before = (kh - 1 - shape.padding[0], spread * (kw - 1) - shape.padding[1])
    view = products(dy, weight.flip(2, 3).transpose(0, 1), before, size, spread)
    return view.contiguous() if out is None else out.copy_(view)


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

    Zeros beside dy's rows meet the columns that reach over a sample's edge. Workspace: x, dy and Ho weights.
    """
    (kh, kw), (ho, wo), spread = shape.kernel, shape.out, shape.dilation[1]
    batch, channels, out_channels = x.shape[0], x.shape[1], dy.shape[1]
    wide = wo + spread * (kw - 1)
    low = lowered(x, *shape.padding, ho + kh - 1, wide, 1, 1, 1)
    line, columns, lines = batch * wide, batch * wide - spread * (kw - 1), kh * channels
    rows = lowered(dy, 0, 0, ho, wide, 1, 1, 1).view(ho, out_channels, line)[:, :, :columns]
    dw = x.new_empty((out_channels, channels, kh, kw))
    for tap in range(kw):
        part = low.as_strided((ho, lines, columns), (channels * line, line, 1), tap * spread)
        summed = torch.bmm(rows, part.transpose(1, 2)).sum(0)
        dw[:, :, :, tap] = summed.view(out_channels, kh, channels).transpose(1, 2)
    return dw
