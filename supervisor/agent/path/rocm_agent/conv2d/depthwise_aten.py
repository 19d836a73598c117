"""Depthwise convolution on a GPU by the kernels that PyTorch itself has for it, which need neither MIOpen nor cuDNN.

One launch a pass, where products of tiles take five. What tells them from the vendor's library is a switch that the
whole process shares: a lock keeps it off for as long as it takes to hand a gradient over.

Source: aten/src/ATen/native/cuda/DepthwiseConv2d.cu of PyTorch, which its ROCm builds have as well.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Sequence, Tuple

import torch

from .sums import HALVES

if TYPE_CHECKING:
    from .geometry import Geometry

INDEXED = 1 << 31
"""Elements of a tensor from which these kernels' indices do not reach."""

_switching = threading.Lock()
_replaced = False


def replace_backward(replaced: bool) -> None:  # noqa: FBT001 - a fact, not an option
    """Note whether this package stands in the dispatcher in place of PyTorch's own backward operator."""
    global _replaced
    _replaced = replaced


def takes(sizes: Sequence[int], shape: Geometry, outputs: int) -> bool:
    """Whether PyTorch has kernels for an input of `sizes` (N, C, H, W) and that many outputs."""
    batch, channels, height, width = sizes
    largest = batch * max(channels * height * width, outputs * shape.out[0] * shape.out[1])
    return channels == shape.groups > 1 and largest < INDEXED


def has_backward() -> bool:
    """Whether the backward operator is PyTorch's own: in its place, this package would ask itself."""
    return not _replaced


def turns(shape: Geometry, outputs: int) -> bool:
    """Whether the input's gradient is such a convolution too: stride 1, padded by at most the kernel's reach."""
    reach = (d * (k - 1) for d, k in zip(shape.dilation, shape.kernel))
    return shape.stride == (1, 1) and outputs == shape.groups and all(p <= r for p, r in zip(shape.padding, reach))


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve; a channel may have several outputs. Workspace: none."""
    return _convolve(x, weight, bias, shape.stride, shape.padding, shape)


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, int], shape: Geometry) -> torch.Tensor:
    """Return the gradient of an input at stride 1: dy convolved with the turned weight. Workspace: the weight."""
    (dh, dw), (kh, kw), (ph, pw) = shape.dilation, shape.kernel, shape.padding
    around = (dh * (kh - 1) - ph, dw * (kw - 1) - pw)
    return _convolve(dy, weight.flip(2, 3), None, (1, 1), around, shape)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """Return the weight's gradient, which adds in float32; of halves it is float32. Workspace: none."""
    weight = dy.new_empty((dy.shape[1], 1, *shape.kernel))  # only its sizes are asked for
    return _widened(_run_backward(dy, x, weight, shape, (False, True, False))[1])


def both_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of input and weight at any stride; of halves the weight's is float32. Workspace: none."""
    dx, dw, _ = _run_backward(dy, x, weight, shape, (True, True, False))
    return dx.contiguous(), _widened(dw)


def _convolve(  # noqa: PLR0913, PLR0917 - a convolution's operands
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Tuple[int, int],
    padding: Tuple[int, int],
    shape: Geometry,
) -> torch.Tensor:
    return torch._C._nn._conv_depthwise2d(
        x.contiguous(), weight.contiguous(), shape.kernel, bias, stride, padding, shape.dilation
    )


def _run_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry, wanted: Tuple[bool, bool, bool]
) -> Any:
    """Run PyTorch's backward operator with the vendor's library off."""
    numbers = (shape.stride, shape.padding, shape.dilation, False, (0, 0), shape.groups)
    with _switching:
        enabled = torch._C._get_cudnn_enabled()
        torch._C._set_cudnn_enabled(False)  # noqa: FBT003 - torch.backends', which refuses where a program froze it
        try:
            return torch.ops.aten.convolution_backward.default(
                dy.contiguous(), x.contiguous(), weight.contiguous(), None, *numbers, wanted
            )
        finally:
            torch._C._set_cudnn_enabled(enabled)


def _widened(dw: torch.Tensor) -> torch.Tensor:
    return dw.float() if dw.dtype in HALVES else dw.contiguous()
