"""The meaning of aten::convolution's arguments in one to three dimensions, as those of a 2-D one. Touches no data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Optional, Tuple

from .geometry import geometry

if TYPE_CHECKING:
    from .geometry import Geometry

Sizes = Tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Depth:
    """The first of three dimensions, which becomes channels and batch of the 2-D convolution."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    out: int


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution from `input` to `output`, or transposed from `output` to `input`; sizes with batch and channels."""

    dimensions: int
    plane: Geometry
    """The 2-D convolution that does the work: rows of height 1 for one dimension, slices of the depth for three."""
    depth: Optional[Depth]
    input: Sizes
    output: Sizes
    """As computed. `output_padding` beyond the stride makes the operand of a transposed convolution smaller."""
    plane_input: Tuple[int, int, int, int]
    plane_weight: Tuple[int, int, int, int]


@lru_cache(maxsize=4096)
def layer(  # noqa: PLR0913, PLR0917 - aten::convolution's own arguments, and the cache's key
    x: Sizes,
    weight: Sizes,
    bias: Optional[Sizes],
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,  # noqa: FBT001 - positional as in aten
    output_padding: Sizes,
    groups: int,
) -> Optional[Layer]:
    """Return the layer that these sizes and numbers describe, None where native is to say why there is none."""
    dimensions = len(weight) - 2
    if not 1 <= dimensions <= 3 or len(x) != len(weight):
        return None
    stride, padding, dilation, output_padding = (
        numbers * dimensions if len(numbers) == 1 else numbers
        for numbers in (stride, padding, dilation, output_padding)
    )
    if not len(stride) == len(padding) == len(dilation) == len(output_padding) == dimensions:
        return None
    if transposed:
        if not _is_transposed(x, weight, bias, stride, padding, dilation, output_padding, groups):
            return None
        grown = _transposed_sizes(x[2:], weight[2:], stride, padding, dilation, output_padding)
        if min(grown) < 1:
            return None
        x, bias = (x[0], weight[1] * groups, *grown), None
    return _forward_layer(x, weight, bias, stride, padding, dilation, groups)


def _is_transposed(  # noqa: PLR0913, PLR0917 - the same arguments
    x: Sizes,
    weight: Sizes,
    bias: Optional[Sizes],
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    output_padding: Sizes,
    groups: int,
) -> bool:
    """Whether native transposes this convolution, as far as the forward one does not tell."""
    limits = [max(s, d) for s, d in zip(stride, dilation)]
    return (
        groups > 0
        and min(*stride, *dilation) > 0
        and min(*padding, *output_padding) >= 0
        and x[1] == weight[0]
        and 0 not in x[1:]
        and bias in (None, (weight[1] * groups,))
        and all(more < limit for more, limit in zip(output_padding, limits))
    )


def _transposed_sizes(  # noqa: PLR0913, PLR0917 - the same arguments
    x: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, more: Sizes
) -> Sizes:
    """Return the spatial sizes of a transposed convolution's result."""
    each = zip(x, kernel, stride, padding, dilation, more)
    return tuple((size - 1) * s - 2 * p + d * (k - 1) + 1 + m for size, k, s, p, d, m in each)


def _forward_layer(  # noqa: PLR0913, PLR0917 - the same arguments
    x: Sizes,
    weight: Sizes,
    bias: Optional[Sizes],
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Optional[Layer]:
    dimensions = len(x) - 2
    depth = None
    if dimensions == 3:
        depth = _make_depth(x[2], weight[2], stride[0], padding[0], dilation[0])
        if depth is None or 0 in x[1:]:
            return None
        plane_x = (x[0] * depth.out, x[1] * depth.kernel, *x[3:])
        plane_weight = (weight[0], weight[1] * depth.kernel, *weight[3:])
    else:
        flat = (1,) * (2 - dimensions)
        plane_x, plane_weight = (*x[:2], *flat, *x[2:]), (*weight[:2], *flat, *weight[2:])
    try:
        plane = geometry(
            plane_x, plane_weight, bias, _to_pair(stride, 1), _to_pair(padding, 0), _to_pair(dilation, 1), groups
        )
    except RuntimeError:
        return None
    out = plane.out[2 - min(dimensions, 2) :]
    output = (x[0], weight[0], *((depth.out,) if depth else ()), *out)
    return Layer(dimensions, plane, depth, x, output, plane_x, plane_weight)


def _make_depth(size: int, kernel: int, stride: int, padding: int, dilation: int) -> Optional[Depth]:
    reach, padded = dilation * (kernel - 1) + 1, size + 2 * padding
    if min(kernel, stride, dilation) < 1 or padding < 0 or padded < reach:
        return None
    return Depth(kernel, stride, padding, dilation, (padded - reach) // stride + 1)


def _to_pair(numbers: Sizes, along_height: int) -> Tuple[int, int]:
    """Return the numbers of height and width; of one dimension, the height's changes nothing."""
    return (along_height, numbers[0]) if len(numbers) == 1 else (numbers[-2], numbers[-1])
