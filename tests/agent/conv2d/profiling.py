"""Which kernels of convolution libraries ran, below whatever called them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

DOORS = {
    *(f"aten::conv{way}{dimensions}d" for way in ("", "_transpose") for dimensions in (1, 2, 3)),
    "aten::_convolution_mode",
    "aten::convolution",
    "aten::convolution_backward",
}
"""Operators that only pass a call on, and the two into which the patch puts its kernels."""
LIBRARIES = ("conv", "cudnn", "miopen", "mkldnn", "thnn")

OWN = {"aten::_conv_depthwise2d"}
"""PyTorch's own kernel for depthwise layers on a card, in which no vendor's library has a part."""

CARD_KERNELS = ("cudnn", "miopen", "convolve", "fprop", "dgrad", "wgrad", "implicit")
"""Parts of the names of the kernels that these libraries run on a card."""


def card_kernels(function: Callable[[], Any]) -> set[str]:
    """Return the names of a convolution library's kernels that ran on the card itself."""
    with torch.profiler.profile() as profile:
        function()
        torch.cuda.synchronize()
    # Operators and nodes of autograd are named after libraries too.
    names = {event.key for event in profile.key_averages() if "aten::" not in event.key and "Backward" not in event.key}
    return {name for name in names if any(part in name.lower() for part in CARD_KERNELS)}


def operators(function: Callable[[], Any]) -> set[str]:
    """Return the names of all ATen operators that ran on any thread on the way through `function`."""
    with torch.profiler.profile() as profile:
        function()
    return {event.key for event in profile.key_averages() if event.key.startswith("aten::")}


def library_kernels(function: Callable[[], Any]) -> set[str]:
    """Return the convolutions and normalizations that ran in a kernel made for them, but for depthwise on a card."""
    names = operators(function) - DOORS - OWN
    return {name for name in names if any(part in name for part in LIBRARIES)}
