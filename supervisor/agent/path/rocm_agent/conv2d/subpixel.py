"""The input's gradient of a strided convolution without scattering. One group, undilated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

import torch

from .mec import lowered, overlapping

if TYPE_CHECKING:
    from .geometry import Geometry


def taps(kernel: int, stride: int, padding: int) -> Tuple[int, int, int]:
    """Return how one axis' kernel falls apart by `stride`: (taps of each phase, zero taps before, rows of dy before).

    Input row h = stride*q + r takes dy row q - m with the kernel's tap stride*m + r + padding, where that exists.
    """
    before = (kernel - 1 - padding) // stride
    after = (stride - 1 + padding) // stride
    return before + after + 1, stride * after - padding, before


def phases(weight: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight by phase, (sh, sw, C, taps down, taps across, O): each phase's turned taps, with zeros between.

    A kernel's taps fall apart by its stride, and each phase gets as many as the one with most.
    """
    (kh, kw), (sh, sw), (ph, pw), channels = shape.kernel, shape.stride, shape.padding, weight.shape[1]
    (rows, above, _), (columns, left, _) = taps(kh, sh, ph), taps(kw, sw, pw)
    pads = (left, columns * sw - left - kw, above, rows * sh - above - kh)
    flat = torch.constant_pad_nd(weight, pads).view(-1, channels, rows, sh, columns, sw)
    return flat.flip(2, 4).permute(3, 5, 1, 2, 4, 0)


def pixels(view: torch.Tensor, size: Tuple[int, int], out: torch.Tensor | None) -> torch.Tensor:
    """Return phases' images (N, C, high, sh, wide, sw) interleaved, cut to (N, C, *size), copied once if it fits."""
    batch, channels, high, sh, wide, sw = view.shape
    if out is not None and (high * sh, wide * sw) == tuple(size):
        out.view(view.shape).copy_(view)
        return out
    dx = view.reshape(batch, channels, high * sh, wide * sw)[:, :, : size[0], : size[1]]
    return dx.contiguous() if out is None else out.copy_(dx)


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the gradient of an input of `size` (H, W), padded by less than the kernel in both directions.

    With stride s, the input pixels of equal (row mod s, column mod s) form s*s images, each a stride-1 convolution of
    dy with every s-th tap. All are one MEC product with s*s*C output channels, interleaved by the copy to NCHW that
    is due anyway. Compared with `fold` it writes each pixel once and needs no columns, for taps rounded up to a
    multiple of s: 16/9 of the multiplications for a 3x3 kernel of stride 2. Workspace: dy's lowered rows, twice dy for
    that kernel, and dx once more, or twice where its size is no multiple of the stride.

    Source: Shi et al., sub-pixel convolution, arXiv 1609.05158, turned to the gradient.
    """
    (height, width), (sh, sw), batch = size, shape.stride, dy.shape[0]
    (rows, _, up), (columns, _, left) = (taps(k, s, p) for k, s, p in zip(shape.kernel, shape.stride, shape.padding))
    high, wide, channels = -(-height // sh), -(-width // sw), weight.shape[1]
    flat = phases(weight, shape).reshape(sh * sw * channels, -1)
    low = lowered(dy, up, left, high + rows - 1, wide, columns, 1, 1)
    dx = torch.bmm(flat.expand(high, -1, -1), overlapping(low, rows, 1, high))
    del low
    return pixels(dx.view(high, sh, sw, channels, batch, wide).permute(4, 3, 0, 1, 5, 2), size, out)
