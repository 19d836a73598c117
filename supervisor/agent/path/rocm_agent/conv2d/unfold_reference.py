"""Plain im2col, group by group, as first published. Unchanged, so that others can be compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from .result import laid_out, own_shape

if TYPE_CHECKING:
    from .geometry import Geometry


def unfold_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by unfolding each group into columns and multiplying them by its flattened weight.

    Per group of c = C / groups input and o = O / groups output channels, L = out height * out width:

        x (N, c, H, W)  --unfold-->  columns (N, c*kh*kw, L);  weight (o, c*kh*kw) @ columns  ->  y (N, o, L)

    Workspace: the columns of all groups, N*C*kh*kw*L elements (9 times the input for a 3x3 kernel of stride 1), held
    until backward; `torch.matmul` of a matrix with a batch transposes a second copy of them while it runs. Then the
    concatenation of the groups, and one more output where there is a bias.

    Source: patches/conv2d_fallback.py of github hkevin01/robust-thermal-image-object-detection, the patch with which
    a Radeon RX 5600 XT went from 0.1 to 18.26 batches/s over the six layers of its benchmark.
    """
    outputs = []
    for x_group, weight_group in zip(x.chunk(shape.groups, 1), weight.chunk(shape.groups, 0)):
        columns = functional.unfold(x_group, shape.kernel, shape.dilation, shape.padding, shape.stride)
        flat = weight_group.reshape(weight_group.shape[0], -1)
        y = torch.matmul(flat, columns)
        outputs.append(own_shape(y, (x.shape[0], flat.shape[0], *shape.out)))
    y = torch.cat(outputs, dim=1) if shape.groups > 1 else outputs[0]
    return laid_out(y if bias is None else y + bias.view(1, -1, 1, 1), x, weight)
