"""Copies feature maps with zeros around them, and gathers windows from them."""

from __future__ import annotations

from typing import Tuple

import torch

from .device import processors

Pair = Tuple[int, int]

FEW_A_PROCESSOR = 1 << 13
"""Elements per processor up to which a GPU waits for operators rather than for memory."""
ONE = (1, 1)


def padded(x: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    """Return (N, C, height, width), contiguous: `x` from row `top`, column `left`; zero elsewhere, cut where too long.

    Negative `top` and `left` cut. Returns `x` itself where nothing changes.
    """
    if top == 0 and left == 0 and x.shape[2] == height and x.shape[3] == width:
        return x.contiguous()
    below, right = height - top - x.shape[2], width - left - x.shape[3]
    if x.is_cuda and top == below >= 0 and left == right >= 0 and _is_little(x):
        return framed(x, top, left)
    return torch.constant_pad_nd(x, (left, right, top, below)).contiguous()


def framed(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return `x` with so many zeros on each side, contiguous, in one launch: the im2col of a 1x1 kernel.

    `constant_pad_nd` fills, cuts and copies.
    """
    batch, channels, height, width = x.shape
    height, width = height + 2 * rows, width + 2 * columns
    return gathered(x, ONE, ONE, (rows, columns), ONE, height * width).view(batch, channels, height, width)


def gathered(  # noqa: PLR0913, PLR0917 - im2col's own arguments
    x: torch.Tensor, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair, pixels: int
) -> torch.Tensor:
    """Return the columns (1, N*C*kh*kw, pixels) of `x` by PyTorch's im2col, in one launch.

    It launches once a sample, so that all samples' channels are given as one's; and without `out` it makes a result as
    large as its input, to copy that into a larger one.
    """
    batch, channels, height, width = x.shape
    planes = x.contiguous().view(1, batch * channels, height, width)
    made = x.new_empty((1, batch * channels * kernel[0] * kernel[1], pixels))
    return torch._C._nn.im2col(planes, kernel, dilation, padding, stride, out=made)


def _is_little(x: torch.Tensor) -> bool:
    """Whether operators count, and an old PyTorch's im2col takes the dtype."""
    return x.dtype is not torch.bfloat16 and x.numel() <= FEW_A_PROCESSOR * processors(x.device)


def windows(x: torch.Tensor, kernel: Pair, step: Pair, dilation: Pair) -> torch.Tensor:
    """Return a view (N, C, kh, kw, rows, columns) of contiguous `x`: entry [i, j, r, s] lies at r*step + i*dilation."""
    batch, channels, height, width = x.shape
    rows = (height - dilation[0] * (kernel[0] - 1) - 1) // step[0] + 1
    columns = (width - dilation[1] * (kernel[1] - 1) - 1) // step[1] + 1
    plane = height * width
    return x.as_strided(
        (batch, channels, kernel[0], kernel[1], rows, columns),
        (channels * plane, plane, dilation[0] * width, dilation[1], step[0] * width, step[1]),
    )


def span(start: int, step: int, size: int, count: int) -> Tuple[int, int]:
    """Return which of the positions start, start + step, ... (`count` of them) fall within 0..size, as (first, end)."""
    first = max(0, -(start // step))
    end = min(count, (size - 1 - start) // step + 1)
    return (first, end) if first < end else (0, 0)
