"""Fills large tensors on the CPU with random numbers by repeating a block of them, while a command is probed.

What a network is initialised with is of no consequence for the memory that it takes, and drawing a number for each of
its weights, one after the other, is most of what building a large one takes. The block has a prime number of elements,
so that no two rows of a matrix are alike: a program that chooses by its numbers, as among experts, has no ties. What is
small, requires gradients, or does not have its elements one after the other is filled as ever.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

BLOCK = 262_139
LEAST = 2 * BLOCK


def begin(torch: Any) -> None:
    """Have these fills repeat a block from now on."""
    for name in ("normal_", "uniform_"):
        setattr(torch.Tensor, name, _repeat_block(torch, getattr(torch.Tensor, name)))
    cut_off = getattr(torch.nn.init, "_no_grad_trunc_normal_", None)
    if cut_off is not None:
        torch.nn.init._no_grad_trunc_normal_ = _repeat_block(torch, cut_off)


def _repeat_block(torch: Any, fill: Any) -> Any:
    @wraps(fill)
    def repeat(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not _can_repeat(torch, tensor):
            return fill(tensor, *args, **kwargs)
        flat = tensor.detach().view(-1)
        block = flat[:BLOCK]
        fill(block, *args, **kwargs)
        times, left = divmod(flat.numel(), BLOCK)
        flat[BLOCK : times * BLOCK].view(times - 1, BLOCK).copy_(block.expand(times - 1, BLOCK))
        flat[times * BLOCK :].copy_(block[:left])
        return tensor

    return repeat


def _can_repeat(torch: Any, tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.numel() < LEAST:
        return False
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_floating_point():
        return False
    return bool(tensor.is_contiguous()) and not (tensor.requires_grad and torch.is_grad_enabled())
