"""MEC with one product per sample, which writes its result into NCHW in place. One group, rows undilated.

MEC's one product for the entire batch leaves rows (H, O, N*W), and a pass over the output and the gradient puts them
into NCHW and back. A product a sample has a matrix (O, W) with the rows' distance H*W for each output row: BLAS writes
and reads such strides itself. It costs a launch a sample, and its matrices are a sample wide.

Source: as mec.py; the strided results of torch.bmm are this package's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

import torch

from .mec import lowered, lowered_gradient, turned

if TYPE_CHECKING:
    from .geometry import Geometry


def windows(  # noqa: PLR0913, PLR0917 - one axis' sizes after the other
    low: torch.Tensor, taps: int, stride: int, rows: int, batch: int, sample: int
) -> torch.Tensor:
    """Return one sample's overlapping windows (rows, taps * low's lines, W) of T (rows, kw, C, N*W)."""
    _, wide, channels, columns = low.shape
    line = wide * channels * columns
    size = (rows, taps * wide * channels, columns // batch)
    return low.as_strided(size, (stride * line, columns, 1), sample * (columns // batch))


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolve: per sample, weight (O, kh*kw*C) times Ho overlapping windows (kh*kw*C, Wo), into y[n] as (Ho, O, Wo).

    Workspace: T, kw / stride times the input.
    """
    (kh, kw), (sh, sw), (ho, wo), batch = shape.kernel, shape.stride, shape.out, x.shape[0]
    low = lowered(x, *shape.padding, (ho - 1) * sh + kh, wo, kw, sw, shape.dilation[1])
    flat = weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1).expand(ho, -1, -1)
    y = x.new_empty((batch, weight.shape[0], ho, wo)) if out is None else out
    for sample in range(batch):
        torch.bmm(flat, windows(low, kh, sh, ho, batch, sample), out=y[sample].transpose(0, 1))
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W), for stride 1: the turned weight times dy's windows.

    Workspace: D, kw times dy.
    """
    low, batch = lowered_gradient(dy, *size, shape), dy.shape[0]
    flat = turned(weight).expand(size[0], -1, -1)
    dx = dy.new_empty((batch, weight.shape[1], *size)) if out is None else out
    for sample in range(batch):
        torch.bmm(flat, windows(low, shape.kernel[0], 1, size[0], batch, sample), out=dx[sample].transpose(0, 1))
    return dx


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient: per output row, dy's (O, Wo) times its window's transpose, over samples and rows.

    The samples' shares are added in the operands' dtype: not for half precision. Workspace: T, Ho weights.
    """
    (kh, kw), (sh, sw), (ho, wo), batch = shape.kernel, shape.stride, shape.out, x.shape[0]
    low = lowered(x, *shape.padding, (ho - 1) * sh + kh, wo, kw, sw, shape.dilation[1])
    parts = None
    for sample in range(batch):
        view = windows(low, kh, sh, ho, batch, sample).transpose(1, 2)
        parts = _add_product(parts, dy[sample].transpose(0, 1), view)
    assert parts is not None
    return parts.sum(0).view(dy.shape[1], kh, kw, x.shape[1]).permute(0, 3, 1, 2).contiguous()


def both_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry, out: torch.Tensor | None = None
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of input and weight for stride 1; dy is lowered once for both. Workspace: D, H weights."""
    rows, batch = x.shape[2], x.shape[0]
    low = lowered_gradient(dy, rows, x.shape[3], shape)
    flat, parts = turned(weight).expand(rows, -1, -1), None
    dx = x.new_empty(x.shape) if out is None else out
    for sample in range(batch):
        view = windows(low, shape.kernel[0], 1, rows, batch, sample)
        torch.bmm(flat, view, out=dx[sample].transpose(0, 1))
        parts = _add_product(parts, x[sample].transpose(0, 1), view.transpose(1, 2))
    assert parts is not None
    parts = parts.sum(0)
    dw = parts.view(x.shape[1], *shape.kernel, dy.shape[1]).flip(1, 2).permute(3, 0, 1, 2).contiguous()
    return dx, dw


def _add_product(total: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b) if total is None else total.baddbmm_(a, b)
