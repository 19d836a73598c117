"""Kernels for the BatchNorm operators of MIOpen and cuDNN that call PyTorch's own instead.

Autograd pairs each operator with its own backward operator, so that both are needed. They exist for training alone:
PyTorch differentiates an evaluation by its own kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


def batch_norm(*arguments: Any) -> Tuple[Tensor, Tensor, Tensor]:
    """Return y, the batch's mean and its inverse deviation; the arguments are native_batch_norm's, in its order."""
    return torch.native_batch_norm(*arguments)


def batch_norm_backward(x: Tensor, dy: Tensor, weight: Tensor, *statistics: Any) -> Tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias; `statistics` are the running ones, the saved ones, and epsilon."""
    *moments, eps = statistics
    return torch.ops.aten.native_batch_norm_backward(dy, x, weight, *moments, True, eps, [True, True, True])  # noqa: FBT003 - aten's


def _with_reserve(x: Tensor, *arguments: Any) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Stand in for cuDNN's, which keeps a fourth tensor for itself."""
    return (*batch_norm(x, *arguments), x.new_empty(0, dtype=torch.uint8))


def _without_reserve(*arguments: Any) -> Tuple[Tensor, Tensor, Tensor]:
    return batch_norm_backward(*arguments[:-1])


KERNELS = {
    "miopen_batch_norm": batch_norm,
    "miopen_batch_norm_backward": batch_norm_backward,
    "cudnn_batch_norm": _with_reserve,
    "cudnn_batch_norm_backward": _without_reserve,
}
"""By the names of their operators in aten."""
