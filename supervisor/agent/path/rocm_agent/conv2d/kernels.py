"""Kernels for PyTorch's own convolution operators, made of matrix products.

They stand below autograd, autocast, torch.func and the tracers, which therefore work as with native: derivatives of any
order, their dtypes and layouts, the recorded graphs. What is no convolution is handed to native, which says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence, Tuple

import torch
from torch.nn import functional

from . import columns, fallback, lowering
from .algorithms import ALGORITHMS
from .autocast import with_autocast_off, without_autocast
from .layers import Layer, layer
from .plan import Plan
from .planned import REAL
from .planner import plan
from .result import laid_out

if TYPE_CHECKING:
    from torch import Tensor

Numbers = Sequence[int]
Gradients = Tuple[Optional[torch.Tensor], Optional[torch.Tensor], Optional[torch.Tensor]]


class Kernels:
    """The operators' kernels, each with its operator's arguments, computed by one algorithm."""

    def __init__(self, algorithm: str) -> None:
        self._fixed = None
        if algorithm != "planned":
            self._fixed = Plan(ALGORITHMS[algorithm], columns.input_gradient, columns.weight_gradient)

    def by_name(self) -> Dict[str, Callable[..., Any]]:
        """Return the kernels by the names of their operators in aten."""
        return {
            "convolution": self.convolution,
            "convolution_backward": self.convolution_backward,
            "miopen_convolution": self._library_convolution,
            "miopen_depthwise_convolution": self._library_convolution,
            "miopen_convolution_transpose": self._library_transposed,
        }

    def convolution(  # noqa: PLR0913, PLR0917 - the operator's arguments
        self,
        x: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        stride: Numbers,
        padding: Numbers,
        dilation: Numbers,
        transposed: bool,  # noqa: FBT001 - positional as in aten
        output_padding: Numbers,
        groups: int,
    ) -> Tensor:
        """Return the convolution, or transposed convolution, of one to three dimensions, laid out as native does it.

        Raises RuntimeError as native, whose own words they are.
        """
        numbers = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
        if torch._C._is_tracing() or not _are_alike(x, weight, bias):
            return _call_native(x, weight, bias, numbers)
        name = (weight.dtype, tuple(weight.shape), *numbers)
        if fallback.native_layers and fallback.is_native(name):
            return _call_native(x, weight, bias, numbers)
        try:
            return self._compute_convolution(x, weight, bias, numbers)
        except fallback.FAILURES as error:
            return fallback.natively(error, name, lambda: _call_native(x, weight, bias, numbers), str(list(x.shape)))

    def _compute_convolution(
        self, x: Tensor, weight: Tensor, bias: Optional[Tensor], numbers: Tuple[Any, ...]
    ) -> Tensor:
        transposed = numbers[3]
        found = layer(tuple(x.shape), tuple(weight.shape), None if bias is None else tuple(bias.shape), *numbers)
        if found is None:
            return _call_native(x, weight, bias, numbers)
        if x.numel() == 0:
            return x.new_empty(found.input if transposed else found.output)
        chosen, plane = self._plan_for(found, x), weight.reshape(found.plane_weight)
        if not transposed:
            y = without_autocast(fallback.forward, lowering.input_plane(x, found), plane, bias, found.plane, chosen)
            return laid_out(lowering.output(y, found), x, weight)
        dy = lowering.output_plane(_pad_operand(x, found), found)
        dx = with_autocast_off(fallback.input_gradient, dy, plane, found.plane_input[2:], found.plane, chosen)
        y = lowering.gradient_of_input(dx, found)
        if bias is not None:
            y.add_(bias.view(-1, *[1] * found.dimensions))
        return laid_out(y, x, weight)

    def convolution_backward(  # noqa: PLR0913, PLR0917 - the operator's arguments
        self,
        dy: Tensor,
        x: Tensor,
        weight: Tensor,
        bias_sizes: Optional[Numbers],
        stride: Numbers,
        padding: Numbers,
        dilation: Numbers,
        transposed: bool,  # noqa: FBT001 - the same
        output_padding: Numbers,
        groups: int,
        wanted: Sequence[bool],
    ) -> Gradients:
        """Return the gradients of x, weight and bias, None for what is not wanted."""
        db = dy.sum([0, *range(2, dy.dim())]) if wanted[2] else None
        if 0 in (dy.numel(), x.numel(), weight.numel()):
            return torch.zeros_like(x) if wanted[0] else None, torch.zeros_like(weight) if wanted[1] else None, db
        numbers = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
        found = layer(tuple(x.shape), tuple(weight.shape), None, *numbers)
        if found is None:
            raise RuntimeError(f"no convolution has the gradients of {list(x.shape)} and {list(weight.shape)}")
        make = self._transposed_gradients if transposed else self._compute_gradients
        dx, dw = make(found, dy, x, weight.reshape(found.plane_weight), wanted)
        return (
            None if dx is None else laid_out(dx, x, weight),
            None if dw is None else laid_out(dw.view(weight.shape), x, weight),
            db,
        )

    def _compute_gradients(
        self, found: Layer, dy: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]
    ) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        chosen, dx, dw = self._plan_for(found, x), None, None
        dy = lowering.output_plane(dy, found)
        plane = lowering.input_plane(x, found) if wanted[1] else x
        if wanted[0] and wanted[1]:
            dx, dw = with_autocast_off(fallback.both_gradients, dy, plane, weight, found.plane, chosen)
        else:
            if wanted[0]:
                dx = with_autocast_off(fallback.input_gradient, dy, weight, found.plane_input[2:], found.plane, chosen)
            if wanted[1]:
                dw = with_autocast_off(fallback.weight_gradient, dy, plane, found.plane, chosen)
        return None if dx is None else lowering.gradient_of_input(dx, found), dw

    def _transposed_gradients(
        self, found: Layer, dy: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]
    ) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """Swap the roles: x is the output of the convolution whose input's gradient was computed forward."""
        chosen, dx, dw = self._plan_for(found, dy), None, None
        plane = lowering.input_plane(dy, found)
        if wanted[0]:
            dx = without_autocast(fallback.forward, plane, weight, None, found.plane, chosen)
            dx = lowering.output(dx, found)
            dx = dx[tuple(slice(size) for size in x.shape)].contiguous()
        if wanted[1]:
            given = lowering.output_plane(_pad_operand(x, found), found)
            dw = with_autocast_off(fallback.weight_gradient, given, plane, found.plane, chosen)
        return dx, dw

    def _plan_for(self, found: Layer, like: Tensor) -> Plan:
        if self._fixed is not None:
            return self._fixed
        return plan(found.plane_input, found.plane_weight, like.dtype, like.device, found.plane)

    def _library_convolution(  # noqa: PLR0913, PLR0917 - the operator's arguments
        self,
        x: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        padding: Numbers,
        stride: Numbers,
        dilation: Numbers,
        groups: int,
        *_: Any,
    ) -> Tensor:
        """Stand in for MIOpen's own operators, which code recorded elsewhere calls by their names."""
        return self.convolution(x, weight, bias, stride, padding, dilation, False, (0,), groups)  # noqa: FBT003 - aten's

    def _library_transposed(  # noqa: PLR0913, PLR0917 - the operator's arguments
        self,
        x: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        padding: Numbers,
        output_padding: Numbers,
        stride: Numbers,
        dilation: Numbers,
        groups: int,
        *_: Any,
    ) -> Tensor:
        return self.convolution(x, weight, bias, stride, padding, dilation, True, output_padding, groups)  # noqa: FBT003


def _are_alike(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> bool:
    """Whether products take these operands; others are native's to compute without the library, or to refuse."""
    dtype, device = x.dtype, x.device
    return (
        dtype in REAL
        and weight.dtype is dtype
        and weight.device == device
        and (bias is None or (bias.dtype is dtype and bias.device == device))
    )


def _call_native(x: Tensor, weight: Tensor, bias: Optional[Tensor], numbers: Tuple[Any, ...]) -> Tensor:
    """Call ATen's own kernels, on a GPU never the vendor's library: to have the call recorded, or refused."""
    cudnn = torch.backends.cudnn
    enabled = cudnn.enabled and not x.is_cuda
    flags = (cudnn.benchmark, cudnn.deterministic, enabled, cudnn.allow_tf32)
    return torch.ops.aten._convolution.default(x, weight, bias, *numbers, *flags)


def _pad_operand(x: Tensor, found: Layer) -> Tensor:
    """Return a transposed convolution's operand with zeros where output_padding beyond the stride adds to its sizes."""
    missing = [size - has for size, has in zip(found.output[2:], x.shape[2:])]
    if not any(missing):
        return x
    return functional.pad(x, [number for more in reversed(missing) for number in (0, more)])
