"""The passes of a convolution over parts of the batch, for a smaller workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Tuple

import torch

from . import direct, mec, shifted, subpixel
from .candidates import FORWARD, INPUT, WEIGHT

if TYPE_CHECKING:
    from .candidates import Candidate
    from .geometry import Geometry


IN_PLACE = (
    mec.forward,
    direct.forward,
    shifted.forward,
    mec.input_gradient,
    direct.input_gradient,
    shifted.input_gradient,
    shifted.strided_input_gradient,
    subpixel.input_gradient,
    mec.both_gradients,
    direct.both_gradients,
)
"""What can write its result into a part of a larger tensor."""


def samples_within(candidate: Candidate, result: int, workspace: int) -> int:
    """Return how many samples at a time keep to `workspace` elements, 0 where one takes more.

    `result` is a sample's result, which parts that cannot write in place hold once more.
    """
    a_sample = candidate.need.a_sample + (0 if candidate.run in IN_PLACE else result)
    left = workspace - candidate.need.fixed
    return max(0, left // max(1, a_sample))


def fitted(kind: str, candidate: Candidate, batch: int, result: int, workspace: int) -> Callable[..., Any]:
    """Return the candidate's function, over parts of the batch where all of it takes more than `workspace` elements.

    A single sample is not divided.
    """
    samples = 1 if candidate.one_by_one else max(1, samples_within(candidate, result, workspace))
    fits = candidate.need.fixed + batch * candidate.need.a_sample <= workspace
    if batch <= samples or (fits and not candidate.one_by_one):
        return candidate.run
    return in_parts(kind, candidate.run, samples)


def in_parts(kind: str, run: Callable[..., Any], samples: int) -> Callable[..., Any]:
    """Return the pass that goes over the batch `samples` at a time, for a smaller workspace."""
    return {FORWARD: _split_forward, INPUT: _input_gradient, WEIGHT: _weight_gradient}.get(kind, _split_both)(
        run, samples
    )


def _split_forward(run: Callable[..., Any], samples: int) -> Callable[..., torch.Tensor]:
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
        y = x.new_empty((x.shape[0], weight.shape[0], *shape.out))
        for part, made in zip(x.split(samples), y.split(samples)):
            _write_result(run, made, part, weight, bias, shape)
        return y

    return forward


def _input_gradient(run: Callable[..., Any], samples: int) -> Callable[..., torch.Tensor]:
    def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
        dx = dy.new_empty((dy.shape[0], weight.shape[1] * shape.groups, *size))
        for part, made in zip(dy.split(samples), dx.split(samples)):
            _write_result(run, made, part, weight, size, shape)
        return dx

    return input_gradient


def _weight_gradient(run: Callable[..., Any], samples: int) -> Callable[..., torch.Tensor]:
    def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
        return _sum_parts(run(a, b, shape) for a, b in zip(dy.split(samples), x.split(samples)))

    return weight_gradient


def _split_both(run: Callable[..., Any], samples: int) -> Callable[..., Tuple[torch.Tensor, torch.Tensor]]:
    def both(
        dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        split = zip(dy.split(samples), x.split(samples), dx.split(samples))
        dw = _sum_parts(_write_both(run, made, part, given, weight, shape) for part, given, made in split)
        return dx, dw

    return both


def _write_both(run: Callable[..., Any], out: torch.Tensor, dy: torch.Tensor, *others: Any) -> Any:
    if run in IN_PLACE:
        return run(dy, *others, out=out)[1]
    dx, dw = run(dy, *others)
    out.copy_(dx)
    return dw


def _write_result(run: Callable[..., torch.Tensor], out: torch.Tensor, *operands: Any) -> None:
    if run in IN_PLACE:
        run(*operands, out=out)
    else:
        out.copy_(run(*operands))


def _sum_parts(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the parts, which are float32 where the operands are halves."""
    shares = iter(parts)
    total = next(shares)
    for share in shares:
        total.add_(share)
    return total
