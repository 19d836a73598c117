"""Compares a pass with im2col on a part of the training's own batch.

MEC hands the GPU's BLAS operands whose batches overlap in memory, and no AMD GPU was at hand to see that every
rocBLAS takes them. A quarter of the batch is compared: the trial needs less memory than the training.
"""

from __future__ import annotations

from typing import Any, Callable, Tuple

import torch

TOLERANCE = 0.03
"""Relative L2: far above half precision's rounding, and far below what a wrong kernel makes."""
TOLERANCE_WIDE = 1e-3
"""The same for float32 and wider, where products are not rounded to TF32."""
ROUNDING = 1e-6
"""Relative to the sum of all magnitudes: what float32 may round; coarser where the tolerance is."""
PARTS = 4


def agrees(run: Callable[..., Any], reference: Callable[..., Any], operands: Tuple[Any, ...], batched: int) -> str:
    """Return "" where `run` makes what `reference` makes, else what is wrong; raise what either raises.

    `batched` is how many of the first operands are batches. Operands without information, not finite or all zero, are
    replaced by a pattern: an overflow of the training condemns no pass, and zeros acquit none. Where the result is
    very small compared with what it sums, as gradients before a normalization are, rounding alone sets two ways apart:
    what differs may then be as large as rounding of the sum of all magnitudes.
    """
    samples = max(2, operands[0].shape[0] // PARTS)
    given = [*(operand[:samples] for operand in operands[:batched]), *operands[batched:]]
    given = [_rescale_operand(operand) if isinstance(operand, torch.Tensor) else operand for operand in given]
    expected = _as_tuple(reference(*given))
    found = _as_tuple(run(*given))
    bound = _tolerance_for(expected[0])
    if any(a.shape != e.shape or a.dtype is not e.dtype for a, e in zip(found, expected)):
        return "other shapes or dtypes than im2col"
    gaps = [_relative_gap(a, e, e) for a, e in zip(found, expected)]
    if all(gap <= bound for gap in gaps):  # which NaN is not
        return ""
    summed = _as_tuple(
        reference(*(operand.abs() if isinstance(operand, torch.Tensor) else operand for operand in given))
    )
    rounding = max(ROUNDING, bound / 30)
    if all(gap <= bound or _relative_gap(a, e, s) <= rounding for gap, a, e, s in zip(gaps, found, expected, summed)):
        return ""
    return "relative distances to im2col " + ", ".join(f"{gap:.1e}" for gap in gaps)


def _tolerance_for(tensor: torch.Tensor) -> float:
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return TOLERANCE
    rounded = tensor.is_cuda and torch.get_float32_matmul_precision() != "highest"
    return TOLERANCE if rounded or torch.backends.cuda.matmul.allow_tf32 else TOLERANCE_WIDE


def _as_tuple(result: Any) -> Tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _rescale_operand(operand: torch.Tensor) -> torch.Tensor:
    """Return the operand with 1/16 as its largest magnitude: half-precision gradients are often too small to compare.

    The passes are linear in it, and neither overflow nor underflow then hides what a kernel does.
    """
    largest = float(operand.detach().abs().max())
    if 0 < largest < float("inf"):
        wide = operand if operand.dtype is torch.float64 else operand.float()
        return (wide * (1 / 16 / largest)).to(operand.dtype)
    pattern = torch.arange(operand.numel(), device=operand.device, dtype=torch.float32).mul_(0.7).sin_().mul_(1 / 16)
    return pattern.view(operand.shape).to(operand.dtype)


def _relative_gap(actual: torch.Tensor, expected: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the distance of the two relative to the size of `reference`."""
    size = float(reference.float().norm())
    gap = float((actual.float() - expected.float()).norm())
    return gap if gap == 0 else gap / max(size, 1e-30)
