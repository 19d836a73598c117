"""Products whose inner dimension runs over pixels and samples, and the dtype of their sums.

The gradient of a weight adds as many products as the batch has pixels, and most of them cancel. So that its error stays
that of one rounding, shares of half precision are made and added in float32 and rounded once, by whoever asked for the
pass; and a GPU, whose BLAS may add all products of a long inner dimension one after another, gets it in pieces.
"""

from __future__ import annotations

from typing import Dict, Tuple

import torch

HALVES = frozenset((torch.float16, torch.bfloat16))
LONGEST: Dict[str, Dict[torch.dtype, int]] = {
    "cuda": {torch.float32: 1 << 11, torch.float16: 1 << 15, torch.bfloat16: 1 << 15}
}
"""Products that a kind of device adds one after another at most, by the dtype of the operands.

A chain of 2048 rounds float32 by 1e-6 where the sum does not cancel, one of 160,000 by 1e-5. A CPU's BLAS divides a sum
into blocks by itself.
"""
ALIGNED = 64

_sums: Dict[Tuple[torch.dtype, torch.device], bool] = {}


def multiplies_wide(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the device makes float32 products of `dtype`, a half: PyTorch 2.8 does on NVIDIA's GPUs, 2.10 on AMD's.

    Found out by a product at the first question; while a GPU records a graph, the answer is no.
    """
    if device.type != "cuda":
        return False
    key = (dtype, device)
    if key not in _sums:
        if torch.cuda.is_current_stream_capturing():
            return False
        _sums[key] = _try_float32_output(dtype, device)
    return _sums[key]


def wide(first: torch.Tensor, second: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return a product's operands, to be rearranged for it: in float32 where the device does not make it of halves."""
    if first.dtype not in HALVES or multiplies_wide(first.dtype, first.device):
        return first, second
    return first.float(), second.float()


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a (B, m, K) times b (B, K, n), in float32 where they are halves."""
    longest = LONGEST.get(a.device.type)
    if longest is None or a.shape[2] <= longest.get(a.dtype, a.shape[2]):
        return multiplied(a, b)
    return in_pieces(a, b, piece_of(a.shape[2], longest[a.dtype]))


def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the same by one product, however long."""
    if a.dtype not in HALVES:
        return torch.bmm(a, b)
    if multiplies_wide(a.dtype, a.device):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def piece_of(length: int, longest: int) -> int:
    """Return how long the pieces are: alike, at most `longest`, aligned as wide loads want them."""
    return min(longest, -(-length // -(-length // longest) // ALIGNED) * ALIGNED)


def in_pieces(a: torch.Tensor, b: torch.Tensor, piece: int) -> torch.Tensor:
    """Return a (B, m, K) times b (B, K, n), adding at most `piece` products at a time; the pieces, then, in float32.

    Few long products are made one at a time, all their pieces at once; many, piece by piece. Workspace besides the
    result: every piece's result of one product, or of halves the result once more.
    """
    if a.shape[0] < a.shape[2] // piece:
        return torch.stack([_side_by_side(each, other, piece) for each, other in zip(a, b)])
    total = multiplied(a[:, :, :piece], b[:, :piece])
    for start in range(piece, a.shape[2], piece):
        part = (a[:, :, start : start + piece], b[:, start : start + piece])
        if a.dtype in HALVES:
            total.add_(multiplied(*part))
        else:
            total.baddbmm_(*part)
    return total


def _side_by_side(a: torch.Tensor, b: torch.Tensor, piece: int) -> torch.Tensor:
    """Return a (m, K) times b (K, n) by one batched product of all pieces."""
    count = a.shape[1] // piece
    divided = count * piece
    pieces = a[:, :divided].unflatten(1, (count, piece)).transpose(0, 1)
    made = multiplied(pieces, b[:divided].unflatten(0, (count, piece))).sum(0)
    if divided < a.shape[1]:
        made.add_(multiplied(a[None, :, divided:], b[None, divided:])[0])
    return made


def _try_float32_output(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a product of the device is float32, and not merely called so."""
    numbers = torch.linspace(0.1, 1.0, 2 * 16 * 64, dtype=torch.float64).to(dtype).view(2, 16, 64)
    exact = torch.bmm(numbers.double(), numbers.double().transpose(1, 2))
    try:
        given = numbers.to(device)
        made = torch.bmm(given, given.transpose(1, 2), out_dtype=torch.float32)
    except (RuntimeError, TypeError, ValueError):
        return False
    return made.dtype is torch.float32 and float((made.cpu().double() / exact - 1).abs().max()) < 1e-5
