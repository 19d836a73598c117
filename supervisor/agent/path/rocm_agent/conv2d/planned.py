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


def planned(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by the plan for these sizes: MEC, Winograd, plain products or tiles, as planner.py chooses at first use.

    Workspace: what the family of each pass says, at most limits.workspace_mb as far as one sample allows. Held until
    backward: the input and the weight. The output is NCHW.
    """
    if _compiling() or not _takes(x, weight, bias):
        return unfold(x, weight, bias, shape)
    chosen = plan(x.shape, weight.shape, x.dtype, x.device, shape)
    if torch.is_grad_enabled():
        return _Convolution.apply(x, weight, bias, shape, chosen)
    return without_autocast(chosen.forward, x, weight, bias, shape)


def _takes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether these are plain tensors of real numbers on a device with data, seen by nothing but autograd."""
    return (
        x.dtype in REAL
        and type(x) in PLAIN
        and type(weight) in PLAIN
        and (bias is None or type(bias) in PLAIN)
        and (x.is_cuda or x.device.type == "cpu")
        and x.numel() > 0
        and forward_ad._current_level < 0
        and not _transforming()
        and not torch._C._is_tracing()
    )


class _Convolution(torch.autograd.Function):
    """A planned convolution in autograd's graph."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - the convolution's operands
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, chosen: Plan
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.chosen = shape, chosen
        return without_autocast(chosen.forward, x, weight, bias, shape)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        dx = dw = None
        if torch.is_grad_enabled():
            dx, dw = without_autocast(_differentiable_gradients, dy, x, weight, ctx.shape)
        elif wants_x and wants_weight and ctx.chosen.both is not None:
            dx, dw = without_autocast(ctx.chosen.both, dy, x, weight, ctx.shape)
        else:
            if wants_x:
                dx = without_autocast(ctx.chosen.input_gradient, dy, weight, x.shape[2:], ctx.shape)
            if wants_weight:
                dw = without_autocast(ctx.chosen.weight_gradient, dy, x, ctx.shape)
        return dx, dw, dy.sum((0, 2, 3)) if wants_bias else None, None, None


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
