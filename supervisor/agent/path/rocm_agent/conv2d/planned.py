"""The convolution that a plan computes, with gradients that keep the input and not its columns.

What the plan's functions cannot follow takes `unfold` instead, which autograd and every transform understand:
gradients of gradients, torch.func and vmap, forward-mode gradients, compilers and tracers, tensors without data or of
other classes, complex numbers, empty batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple

import torch
from torch.autograd import forward_ad
from torch.nn import functional

from . import fallback
from .autocast import with_autocast_off, without_autocast
from .planner import plan
from .result import finished, own, own_shape
from .unfold import unfold

if TYPE_CHECKING:
    from .geometry import Geometry
    from .plan import Plan

REAL = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))
PLAIN = (torch.Tensor, torch.nn.Parameter)


def _never_rerun() -> bool:
    return False


_transforming = getattr(torch._C, "_are_functorch_transforms_active", _never_rerun)
is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _never_rerun)
if not hasattr(torch, "compiler"):
    is_compiling = getattr(getattr(torch, "_dynamo", None), "is_compiling", _never_rerun)

is_exporting = getattr(getattr(torch, "compiler", None), "is_exporting", _never_rerun)
"""Whether torch.export is recording."""


def planned(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by the plan for these sizes: MEC, Winograd, plain products or tiles, as planner.py chooses at first use.

    Workspace: what the family of each pass says, at most limits.workspace_mb as far as one sample allows. Held until
    backward: the input and the weight, as far as gradients need them.
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
    return finished(fallback.forward(x, weight, bias, shape, chosen), x, weight)


def takes(x: torch.Tensor) -> bool:
    """Whether a plan's functions take this input: real numbers on a device with data, at least one."""
    return x.dtype in REAL and (x.is_cuda or x.device.type == "cpu") and x.numel() > 0


def unusual(x: Any, weight: Any, bias: Any) -> bool:
    """Whether anything but autograd sees this call, or an operand is no plain tensor."""
    return (
        is_compiling()
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
        # An operand that no gradient needs is not held, and may be changed in place.
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None)
        ctx.shape, ctx.chosen, ctx.sizes = shape, chosen, (x.shape, weight.shape)
        return finished(fallback.forward(x, weight, bias, shape, chosen), x, weight)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        dx, dw = with_autocast_off(_compute_gradients, dy, *ctx.saved_tensors, ctx.sizes, ctx.shape, ctx.chosen)
        return dx, dw, dy.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None, None, None


_apply = super(torch.autograd.Function, _Convolution).apply
"""Function's own `apply` in C: the one in Python checks again whether a transform is active, and binds defaults."""


def _compute_gradients(  # noqa: PLR0913, PLR0917 - what a backward pass has
    dy: torch.Tensor,
    x: torch.Tensor | None,
    weight: torch.Tensor | None,
    sizes: Tuple[torch.Size, torch.Size],
    shape: Geometry,
    chosen: Plan,
) -> Any:
    """Return the gradients of x and weight; the weight's where x was held for it, x's where the weight was."""
    if torch.is_grad_enabled():
        return _differentiable_gradients(dy, x, weight, sizes, shape)
    if x is not None and weight is not None:
        dx, dw = fallback.both_gradients(dy, x, weight, shape, chosen)
        return own(dx), own(dw)
    dx = None if weight is None else own(fallback.input_gradient(dy, weight, sizes[0][2:], shape, chosen))
    return dx, None if x is None else own(fallback.weight_gradient(dy, x, shape, chosen))


def _differentiable_gradients(
    dy: torch.Tensor,
    x: torch.Tensor | None,
    weight: torch.Tensor | None,
    sizes: Tuple[torch.Size, torch.Size],
    shape: Geometry,
) -> Tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the same by operators that autograd differentiates, for gradients of gradients of any order."""
    (batch, *_, height, width), (_, *kernel), groups = sizes[0], sizes[1], shape.groups
    rows, dx, dw = kernel[0] * kernel[1] * kernel[2], None, None
    dy = dy.reshape(batch, groups, -1, shape.out[0] * shape.out[1])
    if x is not None:
        columns = functional.unfold(x, shape.kernel, shape.dilation, shape.padding, shape.stride)
        columns = columns.view(batch, groups, rows, columns.shape[2])
        dw = own_shape(torch.matmul(dy, columns.transpose(2, 3)).sum(0), sizes[1])
    if weight is not None:
        flat = weight.reshape(groups, -1, rows)
        spread = torch.matmul(flat.transpose(1, 2), dy).view(batch, groups * rows, -1)
        dx = functional.fold(spread, (height, width), shape.kernel, shape.dilation, shape.padding, shape.stride)
    return dx, dw
