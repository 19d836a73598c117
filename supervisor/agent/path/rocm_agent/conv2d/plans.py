"""The functions that compute one convolution's passes, and the same over parts of the batch; it chooses none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, NamedTuple, Optional, Tuple

import torch

from . import mec, shifted, subpixel

if TYPE_CHECKING:
    from .geometry import Geometry


class Plan(NamedTuple):
    """The functions for one convolution; `both`, where there is one, makes the two gradients together.

    forward(x, weight, bias, shape), input_gradient(dy, weight, (H, W), shape), weight_gradient(dy, x, shape),
    both(dy, x, weight, shape).
    """

    forward: Callable[..., torch.Tensor]
    input_gradient: Callable[..., torch.Tensor]
    weight_gradient: Callable[..., torch.Tensor]
    both: Optional[Callable[..., Tuple[torch.Tensor, torch.Tensor]]] = None


IN_PLACE = (mec.forward, shifted.forward, mec.input_gradient, subpixel.input_gradient)
"""What can write its result into a part of a larger tensor."""


def in_parts(chosen: Plan, samples: int) -> Plan:
    """Return the plan that goes over the batch `samples` at a time, for a smaller workspace."""
    both = None if chosen.both is None else _both(chosen.both, samples)
    return Plan(
        _forward(chosen.forward, samples),
        _input_gradient(chosen.input_gradient, samples),
        _weight_gradient(chosen.weight_gradient, samples),
        both,
    )


def _forward(run: Callable[..., Any], samples: int) -> Callable[..., torch.Tensor]:
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
        y = x.new_empty((x.shape[0], weight.shape[0], *shape.out))
        for part, made in zip(x.split(samples), y.split(samples)):
            _write(run, made, part, weight, bias, shape)
        return y

    return forward


def _input_gradient(run: Callable[..., Any], samples: int) -> Callable[..., torch.Tensor]:
    def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
        dx = dy.new_empty((dy.shape[0], weight.shape[1] * shape.groups, *size))
        for part, made in zip(dy.split(samples), dx.split(samples)):
            _write(run, made, part, weight, size, shape)
        return dx

    return input_gradient


def _weight_gradient(run: Callable[..., Any], samples: int) -> Callable[..., torch.Tensor]:
    def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
        return _total((run(a, b, shape) for a, b in zip(dy.split(samples), x.split(samples))), dy.dtype)

    return weight_gradient


def _both(run: Callable[..., Any], samples: int) -> Callable[..., Tuple[torch.Tensor, torch.Tensor]]:
    def both(
        dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        split = zip(dy.split(samples), x.split(samples), dx.split(samples))
        dw = _total((run(part, given, weight, shape, out=made)[1] for part, given, made in split), dy.dtype)
        return dx, dw

    return both


def _write(run: Callable[..., torch.Tensor], out: torch.Tensor, *operands: Any) -> None:
    if run in IN_PLACE:
        run(*operands, out=out)
    else:
        out.copy_(run(*operands))


def _total(parts: Iterable[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return the sum of the parts, in float32 where they are of half precision."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    shares = iter(parts)
    total = next(shares).to(wide)
    for share in shares:
        total.add_(share)
    return total.to(dtype)
