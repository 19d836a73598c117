"""The first use of each pass on a card, compared with im2col; a wrong or failing one is never used again there.

MEC hands the card's BLAS operands whose batches overlap in memory, and no AMD card was at hand to see that every
rocBLAS takes them. A quarter of the training's own batch is compared, scaled: the trial needs less memory than the
training.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Tuple

import torch

from .plans import Plan

TOLERANCE = 0.03
"""Relative L2: far above every dtype's rounding, also bfloat16's, and far below what a wrong kernel makes."""


class Tried:
    """A pass that is trusted once it has agreed with `reference`, which takes its place where it does not."""

    def __init__(self, run: Callable[..., Any], reference: Callable[..., Any], batched: int = 1) -> None:
        """`batched` is how many of the first operands are batches; a part of theirs is enough for the trial."""
        self._run = run
        self._batched = batched
        self._reference = reference
        self._trusted = False

    def __call__(self, *operands: Any) -> Any:
        """Return the pass's result, or at its first use the reference's where that differs."""
        if not self._trusted and not (operands[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            self._try(*operands)
        return self._run(*operands)

    def _try(self, *operands: Any) -> None:
        """Compare the pass with the reference; inputs that are not finite, or too little memory, decide nothing."""
        samples = max(2, operands[0].shape[0] // 4)
        given = [*(operand[:samples] for operand in operands[: self._batched]), *operands[self._batched :]]
        try:
            scaled = [_scaled(operand) if isinstance(operand, torch.Tensor) else operand for operand in given]
            if not all(_finite(operand) for operand in scaled if isinstance(operand, torch.Tensor)):
                return
            expected = _each(self._reference(*scaled))
            found = _each(self._run(*scaled))
        except RuntimeError as error:
            if "out of memory" not in str(error):
                self._give_up(str(error))
            return
        gaps = [_gap(a, e) for a, e in zip(found, expected)]
        if all(gap <= TOLERANCE for gap in gaps):  # which NaN is not
            self._trusted = True
        else:
            self._give_up("relative distances to im2col " + ", ".join(f"{gap:.1e}" for gap in gaps))

    def _give_up(self, reason: str) -> None:
        name = getattr(self._run, "__module__", "").rpartition(".")[2]
        warnings.warn(f"conv2d: {name} is not used for one shape on this device: {reason}", stacklevel=2)
        self._run, self._trusted = self._reference, True


def tried(plan: Plan, reference: Plan) -> Plan:
    """Return `plan` with each pass compared with that of `reference` at its first use."""

    def both(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        return reference.input_gradient(dy, weight, x.shape[2:], shape), reference.weight_gradient(dy, x, shape)

    return Plan(
        Tried(plan.forward, reference.forward),
        Tried(plan.input_gradient, reference.input_gradient),
        Tried(plan.weight_gradient, reference.weight_gradient, 2),
        None if plan.both is None else Tried(plan.both, both, 2),
    )


def _each(result: Any) -> Tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _scaled(operand: torch.Tensor) -> torch.Tensor:
    """Return the operand with 1/16 as its largest magnitude: gradients in half precision are often too small to tell.

    The passes are linear in it, and neither overflow nor underflow then hides what a kernel does.
    """
    largest = float(operand.abs().max())
    return operand * (1 / 16 / largest) if 0 < largest < float("inf") else operand


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _gap(actual: torch.Tensor, expected: torch.Tensor) -> float:
    size = float(expected.float().norm())
    gap = float((actual.float() - expected.float()).norm())
    return gap if gap == 0 else gap / max(size, 1e-30)
