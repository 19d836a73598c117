"""Which algorithm family computes each pass of a convolution, by rules that hold without measuring; it computes none.

The rules come from timing every family on an H200 and on a CPU of two cores. No AMD card has been measured.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Tuple

import torch

from . import columns, depthwise, mec, pointwise, shifted, subpixel, winograd
from .device import processors
from .plans import Plan, in_parts
from .trial import tried

if TYPE_CHECKING:
    from .geometry import Geometry

WORKSPACE_MB = 512
"""How much memory one pass may take beside its operands and its result, in MiB; it goes over the batch in parts."""
WINOGRAD = True
WINOGRAD_CHANNELS = 96
"""From here on float32 sums are long enough that saving multiplications pays for the transforms."""
SHIFTED_CHANNELS = 16
SHIFTED_A_PROCESSOR = 1 << 18
"""Elements of input per processor from which a card computes float32 at stride 1 faster in kw passes than lowered."""
LAUNCH_BOUND_A_PROCESSOR = 1 << 14
"""Elements of columns per processor below which a card waits for the next launch, and fewer operators win."""


COLUMNS = Plan(columns.forward, columns.input_gradient, columns.weight_gradient)


@lru_cache(maxsize=4096)
def plan(
    x: Tuple[int, ...], weight: Tuple[int, ...], dtype: torch.dtype, device: torch.device, shape: Geometry
) -> Plan:
    """Return the plan for an input and a weight of these sizes.

    The cache holds a model's shapes at many image sizes; a plan costs microseconds, and on a card one comparison with
    im2col at the first use of each pass.
    """
    chosen = _chosen(x, weight, dtype, device, shape)
    fitting = _fitting(chosen, x, weight, dtype, shape)
    if device.type != "cuda" or chosen.forward is columns.forward:
        return fitting
    return tried(fitting, _fitting(COLUMNS, x, weight, dtype, shape))


def _fitting(chosen: Plan, x: Tuple[int, ...], weight: Tuple[int, ...], dtype: torch.dtype, shape: Geometry) -> Plan:
    """Return the plan, over parts of the batch where the whole would take more than WORKSPACE_MB."""
    bytes_a_sample = _elements_a_sample(x, weight, shape, chosen) * torch.empty((), dtype=dtype).element_size()
    samples = max(1, (WORKSPACE_MB << 20) // bytes_a_sample)
    return chosen if samples >= x[0] else in_parts(chosen, samples)


def _chosen(
    x: Tuple[int, ...], weight: Tuple[int, ...], dtype: torch.dtype, device: torch.device, shape: Geometry
) -> Plan:
    if shape.groups == x[1]:
        return Plan(depthwise.forward, depthwise.input_gradient, depthwise.weight_gradient)
    if shape.groups > 1:
        return COLUMNS
    if shape.kernel == (1, 1) and shape.padding == (0, 0):
        return Plan(pointwise.forward, pointwise.input_gradient, pointwise.weight_gradient)
    if not _lowers(shape) or _columns(x, shape) * x[0] < LAUNCH_BOUND_A_PROCESSOR * processors(device):
        return COLUMNS
    if _winograd_pays(x, weight, dtype, shape):
        return Plan(winograd.forward, winograd.input_gradient, winograd.weight_gradient)
    if shape.stride == (1, 1):
        first = shifted if _shifting_pays(x, dtype, device) else mec
        return Plan(first.forward, mec.input_gradient, mec.weight_gradient, mec.both_gradients)
    scatter = subpixel.input_gradient if shape.dilation == (1, 1) else columns.input_gradient
    return Plan(mec.forward, scatter, mec.weight_gradient)


def _lowers(shape: Geometry) -> bool:
    """Whether MEC takes the geometry: rows undilated, and no output made of padding alone."""
    reach = shape.dilation[1] * (shape.kernel[1] - 1)
    return shape.dilation[0] == 1 and shape.padding[0] < shape.kernel[0] and shape.padding[1] <= reach


def _winograd_pays(x: Tuple[int, ...], weight: Tuple[int, ...], dtype: torch.dtype, shape: Geometry) -> bool:
    fits = shape.kernel == (3, 3) and shape.stride == shape.dilation == (1, 1)
    precise = dtype in (torch.float32, torch.float64)
    return WINOGRAD and fits and precise and min(x[1], weight[0]) >= WINOGRAD_CHANNELS and min(shape.out) >= 4


def _shifting_pays(x: Tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a forward pass gains by lowering nothing, which a card showed for float32, and a CPU did not."""
    if device.type != "cuda" or dtype is not torch.float32 or x[1] < SHIFTED_CHANNELS:
        return False
    return x[0] * x[1] * x[2] * x[3] >= SHIFTED_A_PROCESSOR * processors(device)


def _columns(x: Tuple[int, ...], shape: Geometry) -> int:
    return x[1] * shape.kernel[0] * shape.kernel[1] * shape.out[0] * shape.out[1]


def _elements_a_sample(x: Tuple[int, ...], weight: Tuple[int, ...], shape: Geometry, chosen: Plan) -> int:
    """Return about how many elements the hungriest pass of `chosen` takes for one sample, never 0."""
    inputs, outputs = x[1] * x[2] * x[3], weight[0] * shape.out[0] * shape.out[1]
    if chosen.forward is columns.forward:
        return _columns(x, shape) + inputs
    if chosen.weight_gradient is mec.weight_gradient:
        lines = shape.kernel[1] * max(x[1] * x[2] * shape.out[1], outputs if chosen.both else 0)
        return lines + max(inputs, outputs)
    if chosen.forward is pointwise.forward:
        return max(inputs, outputs)
    return 5 * max(inputs, outputs) + 3 * min(inputs, outputs)
