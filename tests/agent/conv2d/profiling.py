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


class Events(torch.autograd.profiler.profile):  # type: ignore[misc]  # torch is in the training environments
    """A profile whose events stay what the profiler recorded; a tree of them takes ten times the time of a training."""

    def _parse_kineto_results(self, result: Any) -> list[Any]:
        return []


def operators(function: Callable[[], Any]) -> set[str]:
    """Return the names of all ATen operators that ran on any thread on the way through `function`."""
    with Events(use_kineto=True) as profile:
        function()
    names = {event.name() for event in profile.kineto_results.events()}
    assert names, "the profiler recorded something"
    return {name for name in names if name.startswith("aten::")}


def library_kernels(function: Callable[[], Any]) -> set[str]:
    """Return the convolutions and normalizations that ran in a kernel made for them, but for depthwise on a card."""
    names = operators(function) - DOORS - OWN
    return {name for name in names if any(part in name for part in LIBRARIES)}
