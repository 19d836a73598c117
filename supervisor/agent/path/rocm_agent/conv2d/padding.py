"""Copies of feature maps with zeros around them, and gathers of windows from them; it multiplies nothing."""

from __future__ import annotations

from typing import Tuple

import torch


def padded(x: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    """Return (N, C, height, width), contiguous: `x` from row `top`, column `left`; zero elsewhere, cut where too long.

    Negative `top` and `left` cut. Returns `x` itself where nothing changes.
    """
    if top == 0 and left == 0 and x.shape[2] == height and x.shape[3] == width:
        return x.contiguous()
    below, right = height - top - x.shape[2], width - left - x.shape[3]
    return torch.constant_pad_nd(x, (left, right, top, below)).contiguous()


def windows(x: torch.Tensor, kernel: Tuple[int, int], step: Tuple[int, int], dilation: Tuple[int, int]) -> torch.Tensor:
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
