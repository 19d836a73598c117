"""Ranks the algorithm families for each pass of a convolution by fixed rules, without measuring.

The rules come from timing every family on an H200 and on a CPU of two cores. No AMD GPU has been measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

import torch

from .candidates import BOTH, FORWARD, INPUT, WEIGHT, lowers, takes_winograd
from .device import processors

if TYPE_CHECKING:
    from .case import Case
    from .geometry import Geometry

WINOGRAD_CHANNELS, WINOGRAD_ON_CPU = 96, 64
"""From here on float32 sums are long enough that saving multiplications pays for the transforms."""
SHIFTED_CHANNELS = 16
SHIFTED_A_PROCESSOR = 1 << 18
"""Elements of input per processor from which a GPU computes float32 at stride 1 faster in kw passes than lowered."""
LAUNCH_BOUND_A_PROCESSOR = 1 << 14
"""Elements of columns per processor below which a GPU waits for the next launch, and fewer operators win."""
CACHED_WIDTH = 128
"""Columns of output from which a CPU gains by a sample at a time, whose workspace its cache holds."""


def preferred(case: Case, kind: str) -> Tuple[str, ...]:
    """Return names of candidates for the pass, the best first; for BOTH none where the gradients go apart."""
    shape, x = case.shape, case.x
    if shape.groups == x[1]:
        return ("tiles",) if kind == BOTH else ("tiles", "columns")
    if shape.groups > 1:
        return () if kind == BOTH else ("columns",)
    if shape.kernel == (1, 1) and shape.padding == (0, 0):
        small = x[0] > 1 and shape.out[0] * shape.out[1] < 128
        names = ("pointwise-whole", "pointwise") if small else ("pointwise",)
        return () if kind == BOTH else names
    columns = x[0] * x[1] * shape.kernel[0] * shape.kernel[1] * shape.out[0] * shape.out[1]
    if not lowers(shape) or columns < LAUNCH_BOUND_A_PROCESSOR * processors(case.device):
        return () if kind == BOTH else ("columns",)
    if _winograd_pays(case, shape):
        return () if kind == BOTH else ("winograd", "mec", "columns")
    return _rank_row_families(case, kind, shape)


def _rank_row_families(case: Case, kind: str, shape: Geometry) -> Tuple[str, ...]:
    cached = case.device.type == "cpu" and case.x[0] > 1 and shape.out[1] >= CACHED_WIDTH
    first = ("direct/1",) if cached else ()
    if kind == BOTH:
        return (*first, "mec") if shape.stride == (1, 1) else ()
    if kind == FORWARD and not cached and shape.stride == (1, 1) and _shifting_pays(case):
        return ("shifted", "mec", "columns")
    if kind in (FORWARD, WEIGHT) or shape.stride == (1, 1):
        return (*(("direct-strips",) if cached else ()), *first, "mec", "columns")
    assert kind == INPUT
    return (("direct-strips", "subpixel/1") if cached else ()) + ("subpixel", "columns")


def _winograd_pays(case: Case, shape: Geometry) -> bool:
    precise = case.dtype in (torch.float32, torch.float64)
    enough = min(case.x[1], case.weight[0]) >= (WINOGRAD_ON_CPU if case.device.type == "cpu" else WINOGRAD_CHANNELS)
    return case.limits.winograd and takes_winograd(shape) and precise and enough


def _shifting_pays(case: Case) -> bool:
    """Whether a forward pass gains by lowering nothing, which a GPU showed for float32, and a CPU did not."""
    if case.device.type != "cuda" or case.dtype is not torch.float32 or case.x[1] < SHIFTED_CHANNELS:
        return False
    return case.x[0] * case.x[1] * case.x[2] * case.x[3] >= SHIFTED_A_PROCESSOR * processors(case.device)
