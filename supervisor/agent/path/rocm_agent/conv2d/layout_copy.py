"""Copies between memory layouts, in elements as wide as both sides allow.

A GPU's copy of a permuted tensor takes its time by elements, not by bytes: rows of float32 move twice as fast when
they are taken for rows of 16-byte numbers. A CPU gains nothing by it.
"""

from __future__ import annotations

from typing import Tuple

import torch

WORTH = 1 << 20
"""Elements from which a wider copy is worth looking for."""
WIDER = ((16, torch.complex128), (8, torch.int64))


def copied(out: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Copy `source` into `out`, of one shape and dtype, and return `out`."""
    if out.is_cuda and out.numel() >= WORTH:
        for width, dtype in WIDER:
            if _fits_width(out, width) and _fits_width(source, width):
                out.view(dtype).copy_(source.view(dtype))
                return out
    return out.copy_(source)


def rearranged(source: torch.Tensor, order: Tuple[int, ...]) -> torch.Tensor:
    """Return a contiguous copy of `source` permuted to `order`."""
    view = source.permute(order)
    if not view.is_cuda or view.numel() < 8 * WORTH:  # asking for more costs a process more than the GPU saves
        return view.contiguous()
    return copied(view.new_empty(view.shape), view)


def _fits_width(tensor: torch.Tensor, width: int) -> bool:
    """Whether the tensor can be seen as one of elements `width` bytes wide."""
    size, strides = tensor.element_size(), tensor.stride()
    if size >= width or strides[-1] != 1 or tensor.is_complex():
        return False
    step = width // size
    aligned = tensor.shape[-1] % step == 0 and tensor.data_ptr() % width == 0 and tensor.storage_offset() % step == 0
    return aligned and all(stride % step == 0 for stride in strides[:-1])
