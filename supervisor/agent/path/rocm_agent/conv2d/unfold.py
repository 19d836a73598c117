"""The published im2col with its published improvements: one unfold, one product for all groups, bias in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from .result import laid_out, own_shape

if TYPE_CHECKING:
    from .geometry import Geometry


def unfold(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry) -> torch.Tensor:
    """Convolve by one unfold of all channels and one product that writes every group into its place.

    With g groups, c = C / g, o = O / g and L = out height * out width:

        x (N, C, H, W)  --unfold-->  columns (N, g, c*kh*kw, L);  weight (g, o, c*kh*kw) @ columns  ->  y (N, g, o, L)

    The columns of a group lie together because unfold keeps the channel outermost, and the groups of y are the output
    channels in their order: both views are free, and the product allocates the entire output once. Writing the groups
    one by one into an empty output, as published, would give the same result, but autograd then copies the entire
    gradient once per group. The bias goes onto the product in place: no product needs its own result for its gradient.
    Both operands are contiguous, whatever the layout of `x` and `weight`.

    Workspace: the columns, N*C*kh*kw*L elements, held until backward; for one group `torch.matmul` transposes a second
    copy of them while it runs, for several it repeats the weight N times instead.

    Source: patches/conv2d_optimized.py of github hkevin01/robust-thermal-image-object-detection (sizes computed once
    a shape, contiguous operands, bias in place, one output for all groups).
    """
    batch, out_channels = x.shape[0], weight.shape[0]
    columns = functional.unfold(x, shape.kernel, shape.dilation, shape.padding, shape.stride)
    if shape.groups == 1:
        y = torch.matmul(weight.reshape(out_channels, -1), columns)
    else:
        rows = weight[0].numel()
        grouped = weight.reshape(shape.groups, out_channels // shape.groups, rows)
        y = torch.matmul(grouped, columns.view(batch, shape.groups, rows, columns.shape[2]))
    if bias is not None:
        # Before any view is taken of y: in place on a view, autograd would copy the entire gradient.
        y.add_(bias.view(*y.shape[1:-1], 1))
    return laid_out(own_shape(y, (batch, out_channels, *shape.out)), x, weight)
