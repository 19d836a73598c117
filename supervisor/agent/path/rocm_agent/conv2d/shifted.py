"""Stride-1 convolution with nothing lowered at all: MEC's rows, and a shift of the columns for each tap of a row.

Cheaper than MEC where the lowered copy costs more than kw passes over the output, as with few channels in float32 on a
card. Half precision would round at each of the kw additions, and is not sent here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .mec import lowered

if TYPE_CHECKING:
    from .geometry import Geometry


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolve: for each of the kw taps, weight (O, kh*C) times the overlapping rows (kh*C, N*width), shifted by it.

    The rows keep their padding, so each product also computes the columns that reach over a sample's edge; the copy to
    NCHW leaves them out. Workspace: the padded input once, the output once more.
    """
    (kh, kw), (ho, wo), spread, batch = shape.kernel, shape.out, shape.dilation[1], x.shape[0]
    wide, out_channels, lines = wo + spread * (kw - 1), weight.shape[0], kh * x.shape[1]
    low = lowered(x, *shape.padding, ho + kh - 1, wide, 1, 1, 1)
    line, columns = batch * wide, batch * wide - spread * (kw - 1)
    y = None
    for tap in range(kw):
        flat = weight[:, :, :, tap].transpose(1, 2).reshape(out_channels, lines).expand(ho, -1, -1)
        part = low.as_strided((ho, lines, columns), (x.shape[1] * line, line, 1), tap * spread)
        y = torch.bmm(flat, part) if y is None else y.baddbmm_(flat, part)
    del low, part
    assert y is not None
    view = y.as_strided((batch, out_channels, ho, wo), (wide, columns, out_channels * columns, 1))
    if bias is None:
        return view.contiguous() if out is None else out.copy_(view)
    return torch.add(view, bias.view(-1, 1, 1), out=x.new_empty(view.shape) if out is None else out)
