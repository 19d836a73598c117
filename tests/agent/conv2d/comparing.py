"""Runs one convolution by native and by an algorithm and says how far apart results and gradients are."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from rocm_agent.conv2d import ALGORITHMS, conv2d

# Relative L2. Half types: two units in the last place, since fold adds up to kh*kw of them in that precision.
BOUNDS = {
    torch.float64: 1e-14,
    torch.complex128: 1e-14,
    torch.float32: 2e-6,
    torch.complex64: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the L2 distance relative to `expected`, 0 for two empty or equal tensors, in double precision."""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, e = actual.detach().to(wide), expected.detach().to(wide)
    gap = float((a - e).abs().pow(2).sum().sqrt())
    return gap if gap == 0.0 else gap / max(float(e.abs().pow(2).sum().sqrt()), 1e-30)


def unlike(
    name: str, actual: torch.Tensor | None, expected: torch.Tensor | None, bound: float | None = None
) -> list[str]:
    """Return what differs between two tensors in presence, shape, dtype or, beyond the dtype's bound, in value."""
    if actual is None or expected is None:
        return [] if actual is expected else [f"{name}: one of them is None"]
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return [f"{name}: {actual.dtype}{tuple(actual.shape)} for {expected.dtype}{tuple(expected.shape)}"]
    gap = distance(actual, expected)
    # A comparison that NaN fails.
    return [] if gap <= (bound or BOUNDS[expected.dtype]) else [f"{name}: relative distance {gap:.2e}"]


def outcome(function: Any, operands: tuple[Any, ...], options: dict[str, Any], seed: torch.Tensor | None = None) -> Any:
    """Return the output and the operands' gradients of `function`, for the gradient `seed` (by default a fixed one)."""
    # A detached tensor keeps the strides, which a clone would tidy up.
    leaves = [None if o is None else o.detach().requires_grad_(o.requires_grad) for o in operands]
    y = function(*leaves, **options)
    if y.requires_grad:
        if seed is None:
            generator = torch.Generator().manual_seed(7)
            seed = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)
        y.backward(seed)
    return [y, *(None if leaf is None else leaf.grad for leaf in leaves)]


def differences(
    function: Any, native: Any, operands: tuple[Any, ...], options: dict[str, Any], **limits: Any
) -> list[str]:
    """Return what differs between output and gradients (x, weight, bias) of two convolutions of the same operands."""
    return differing(outcome(function, operands, options), outcome(native, operands, options), **limits)


def differing(actual: Any, expected: Any, **limits: Any) -> list[str]:
    """Return what differs between two outcomes."""
    pairs = zip(("y", "dx", "dw", "db"), actual, expected, strict=True)
    return [text for name, a, e in pairs for text in unlike(name, a, e, **limits)]


def operands(
    x: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype = torch.float32, *, bias: bool = True
) -> tuple[Any, ...]:
    """Return x, weight and bias of these shapes, the same numbers each time, all wanting gradients."""
    generator = torch.Generator().manual_seed(11)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    made = [torch.randn(shape, generator=generator, dtype=wide).to(dtype) for shape in (x, weight, weight[:1])]
    return tuple(tensor.requires_grad_() for tensor in made[: 3 if bias else 2]) + (() if bias else (None,))


def each_algorithm() -> Iterator[Any]:
    """Yield conv2d with each algorithm, as a function with F.conv2d's signature."""
    for name in ALGORITHMS:
        yield functools.partial(conv2d, algorithm=name)
