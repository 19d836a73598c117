"""Fills large tensors on the CPU with random numbers by repeating a block of them, while a command is probed.

What a network is initialised with is of no consequence for the memory that it takes, and drawing a number for each of
its weights, one after the other, is most of what building a large one takes. The block has a prime number of elements,
so that no two rows of a matrix are alike: a program that chooses by its numbers, as among experts, has no ties. What is
small, requires gradients, or does not have its elements one after the other is filled as ever, and so is everything
from the first batch on: steps take their time.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, List, Tuple

BLOCK = 262_139
LEAST = 2 * BLOCK

_replaced: List[Tuple[Any, str, Any]] = []


def begin(torch: Any) -> None:
    """Have these fills repeat a block until `end`."""
    for home, name in (
        (torch.Tensor, "normal_"),
        (torch.Tensor, "uniform_"),
        (torch.nn.init, "_no_grad_trunc_normal_"),
    ):
        fill = getattr(home, name, None)
        if fill is not None:
            _replaced.append((home, name, fill))
            setattr(home, name, _repeat_block(torch, fill))


def end() -> None:
    """Have all be filled as ever."""
    while _replaced:
        setattr(*_replaced.pop())


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
