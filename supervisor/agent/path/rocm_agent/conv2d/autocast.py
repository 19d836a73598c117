"""The dtype that autocast wants of a convolution's operands, and computing with autocast off."""

from __future__ import annotations

from typing import Any, Callable

import torch

if hasattr(torch, "get_autocast_dtype"):

    def autocast_dtype(like: torch.Tensor) -> torch.dtype | None:
        """Return the dtype to which autocast lowers convolutions on the device of `like` now, None where it is off.

        Asked in the way of each PyTorch: 2.4 names the device, older ones have one function a device. ROCm is "cuda".
        """
        device = "cuda" if like.is_cuda else "cpu"
        if torch.is_autocast_enabled(device) and (like.is_cuda or like.device.type == "cpu"):
            return torch.get_autocast_dtype(device)
        return None
else:

    def autocast_dtype(like: torch.Tensor) -> torch.dtype | None:
        """Return the same from a PyTorch before 2.4."""
        if like.is_cuda:
            return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
        enabled = torch.is_autocast_cpu_enabled() and like.device.type == "cpu"
        return torch.get_autocast_cpu_dtype() if enabled else None


def lowered(tensor: torch.Tensor | None, dtype: torch.dtype | None) -> torch.Tensor | None:
    """Return `tensor` in autocast's `dtype`; float64, complex and integers stay as they are, as in native autocast."""
    if tensor is None or dtype is None or not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(dtype)


def with_autocast_off(function: Callable[..., Any], first: torch.Tensor, *others: Any) -> Any:
    """Call `function`, which makes float32 products of halves, with autocast off: it would make them of halves."""
    if autocast_dtype(first) is None:
        return function(first, *others)
    with torch.autocast(first.device.type, enabled=False):
        return function(first, *others)


def without_autocast(function: Callable[..., Any], first: torch.Tensor, *others: Any) -> Any:
    """Call `function` with autocast off: the operands have their dtype already, and products would be lowered again."""
    if autocast_dtype(first) in (None, first.dtype):
        return function(first, *others)
    with torch.autocast(first.device.type, enabled=False):
        return function(first, *others)
