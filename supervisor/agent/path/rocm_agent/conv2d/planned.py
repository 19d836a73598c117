"""The convolution that a plan computes, with gradients that keep the input and not its columns; it plans nothing.

What the plan's functions cannot follow takes `unfold` instead, which autograd and every transform understand:
gradients of gradients, torch.func and vmap, forward-mode gradients, compilers and tracers, tensors without data or of
other classes, complex numbers, empty batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple

import torch
from torch.autograd import forward_ad
from torch.nn import functional

from .autocast import without_autocast
from .planner import plan
from .unfold import unfold

if TYPE_CHECKING:
    from .geometry import Geometry
    from .plans import Plan

REAL = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))
PLAIN = (torch.Tensor, torch.nn.Parameter)


def _never() -> bool:
    return False


_transforming = getattr(torch._C, "_are_functorch_transforms_active", _never)
_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _never)
if not hasattr(torch, "compiler"):
    _compiling = getattr(getattr(torch, "_dynamo", None), "is_compiling", _never)

is_exporting = getattr(getattr(torch, "compiler", None), "is_exporting", _never)
"""Whether torch.export is recording."""


def planned(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by the plan for these sizes: MEC, Winograd, plain products or tiles, as planner.py chooses at first use.

    Workspace: what the family of each pass says, at most limits.workspace_mb as far as one sample allows. Held until
    backward: the input and the weight. The output is NCHW.
    """
    if unusual(x, weight, bias) or not takes(x):
        return unfold(x, weight, bias, shape)
    chosen = plan(x.shape, weight.shape, x.dtype, x.device, shape)
    return without_autocast(by_plan, x, weight, bias, shape, chosen)


def by_plan(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, chosen: Plan
) -> torch.Tensor:
    """Convolve by the plan `chosen`, in autograd's graph where there is one; autocast is off."""
    if torch.is_grad_enabled():
        return _apply(x, weight, bias, shape, chosen)
    return chosen.forward(x, weight, bias, shape)


def takes(x: torch.Tensor) -> bool:
    """Whether a plan's functions take this input: real numbers on a device with data, at least one."""
    return x.dtype in REAL and (x.is_cuda or x.device.type == "cpu") and x.numel() > 0


def unusual(x: Any, weight: Any, bias: Any) -> bool:
    """Whether anything but autograd sees this call, or an operand is no plain tensor."""
    return (
        _compiling()
        or type(x) not in PLAIN
        or type(weight) not in PLAIN
        or not (bias is None or type(bias) in PLAIN)
        or forward_ad._current_level >= 0
        or _transforming()
        or torch._C._is_tracing()
        or is_exporting()
    )


class _Convolution(torch.autograd.Function):
    """A planned convolution in autograd's graph."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - the convolution's operands
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, chosen: Plan
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.chosen = shape, chosen
        return chosen.forward(x, weight, bias, shape)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        wanted = ctx.needs_input_grad
        dx, dw = without_autocast(_gradients, dy, *ctx.saved_tensors, ctx.shape, ctx.chosen, wanted)
        return dx, dw, dy.sum((0, 2, 3)) if wanted[2] else None, None, None


_apply = super(torch.autograd.Function, _Convolution).apply
"""Function's own `apply` in C: the one in Python asks anew whether a transform is active, and binds defaults."""


def _gradients(  # noqa: PLR0913, PLR0917 - what a backward pass has
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry, chosen: Plan, wanted: Tuple[bool, ...]
) -> Any:
    """Return the gradients of x and weight, None for what is not wanted."""
    wants_x, wants_weight = wanted[0], wanted[1]
    if torch.is_grad_enabled():
        return _differentiable_gradients(dy, x, weight, shape)
    if wants_x and wants_weight and chosen.both is not None:
        return chosen.both(dy, x, weight, shape)
    dx = chosen.input_gradient(dy, weight, x.shape[2:], shape) if wants_x else None
    return dx, chosen.weight_gradient(dy, x, shape) if wants_weight else None


def _differentiable_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return both gradients by operators that autograd differentiates, for gradients of gradients of any order."""
    batch, groups, rows = x.shape[0], shape.groups, weight[0].numel()
    columns = functional.unfold(x, shape.kernel, shape.dilation, shape.padding, shape.stride)
    columns = columns.view(batch, groups, rows, columns.shape[2])
    dy = dy.reshape(batch, groups, -1, columns.shape[3])
    flat = weight.reshape(groups, -1, rows)
    dw = torch.matmul(dy, columns.transpose(2, 3)).sum(0).view(weight.shape)
    spread = torch.matmul(flat.transpose(1, 2), dy).view(batch, groups * rows, -1)
    dx = functional.fold(spread, x.shape[2:], shape.kernel, shape.dilation, shape.padding, shape.stride)
    return dx, dw
