"""Converts tensors of 1-D and 3-D convolutions to those of a 2-D convolution and back.

One dimension becomes rows of an image of height 1. Of three, each output slice becomes a sample whose channels are
those of the kernel's depth slices: `kernel depth` copies of the input, and no more products than the convolution has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    import torch

    from .layers import Layer


def input_plane(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Return (N, C, L) as (N, C, 1, L), or (N, C, D, H, W) as (N * out depth, C * kernel depth, H, W)."""
    if layer.depth is None:
        return x.unsqueeze(2) if layer.dimensions == 1 else x
    depth = layer.depth
    x = functional.pad(x, (0, 0, 0, 0, depth.padding, depth.padding))
    windows = x.unfold(2, depth.dilation * (depth.kernel - 1) + 1, depth.stride)[..., :: depth.dilation]
    return windows.permute(0, 2, 1, 5, 3, 4).reshape(layer.plane_input)


def gradient_of_input(plane: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Return what `input_plane` of the result is the gradient of: each slice of the depth sums its copies."""
    if layer.depth is None:
        return plane.squeeze(2) if layer.dimensions == 1 else plane
    batch, channels, size, height, width = layer.input
    depth = layer.depth
    plane = plane.view(batch, depth.out, channels, depth.kernel, height, width)
    total = plane.new_zeros((batch, channels, size + 2 * depth.padding, height, width))
    for tap in range(depth.kernel):
        first = tap * depth.dilation
        last = first + depth.stride * (depth.out - 1) + 1
        total[:, :, first : last : depth.stride].add_(plane[:, :, :, tap].transpose(1, 2))
    return total.narrow(2, depth.padding, size).contiguous()


def output_plane(dy: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Return an output-sized tensor as the plane's output."""
    if layer.depth is None:
        return dy.unsqueeze(2) if layer.dimensions == 1 else dy
    return dy.transpose(1, 2).reshape(-1, dy.shape[1], *dy.shape[3:])


def output(plane: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Return the plane's output as that of the convolution."""
    if layer.depth is None:
        return plane.squeeze(2) if layer.dimensions == 1 else plane
    batch, channels, depth, height, width = layer.output
    return plane.view(batch, depth, channels, height, width).transpose(1, 2).contiguous()
