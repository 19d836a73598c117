"""Gives a convolution's result the form of native's: a tensor of its own, in native's memory format.

The families end in whatever view of their product is cheapest. To a caller a view is another thing than a result:
autograd refuses to change one in place that a Function has returned, or that was made without gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

own_shape = torch.ops.aten._unsafe_view.default
"""Like `Tensor.view`, but the result counts as no view: for a tensor without other references.

Where autograd records nothing, `resize_` of a contiguous tensor to as many elements does the same for less.
"""


def finished(y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return `y`, a tensor without other references, as native would return it for these operands."""
    if x.stride(1) == 1 or weight.stride(1) == 1:
        y = laid_out(y, x, weight)
    return own(y)


def own(y: Tensor) -> Tensor:
    """Return `y`, a tensor without other references, as no view of another tensor."""
    return own_shape(y, y.shape) if y._is_view() else y


def laid_out(made: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the result in the memory format that native gives it: compiled code relies on that."""
    if x.stride(1) != 1 and weight.stride(1) != 1:
        return made.contiguous()
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(made.dim())
    if last is None or (x.is_cuda and not torch.backends.cudnn.enabled):
        return made.contiguous()
    if _is_last(x, last) or _is_last(weight, last):
        return made.contiguous(memory_format=last)
    return made.contiguous()


def _is_last(tensor: Tensor, last: torch.memory_format) -> bool:
    """Whether strides say channels last, also of one channel or one pixel, for which is_contiguous says anything."""
    shape = tensor.shape
    reported = tensor.stride(1) == 1 and tensor.stride(-1) == shape[1] and shape[1:].numel() > 1
    return reported and tensor.is_contiguous(memory_format=last)
