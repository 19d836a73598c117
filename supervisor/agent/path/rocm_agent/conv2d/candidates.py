"""The algorithm families that can compute each pass of a convolution, by name.

The names are what a plan is kept under, so that a family keeps its name. "/1" after a name: a sample at a time, whose
workspace a CPU's cache holds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Tuple

import torch

from . import (
    columns,
    columns_gradient,
    depthwise,
    depthwise_aten,
    depthwise_dense,
    depthwise_taps,
    direct,
    direct_strips,
    mec,
    pointwise,
    shifted,
    subpixel,
    winograd,
    winograd_strips,
)
from .sizes import Need, Sizes

if TYPE_CHECKING:
    from .geometry import Geometry

FORWARD, INPUT, WEIGHT, BOTH = PASSES = ("forward", "input", "weight", "both")
BATCHED = {FORWARD: 1, INPUT: 1, WEIGHT: 2, BOTH: 2}
"""How many of a pass's first operands are batches."""
DENSE_PIXELS = 1 << 16
"""Pixels of input times output up to which a depthwise kernel may become one matrix a channel."""
WHOLE_PIXELS = 4096
"""Pixels of a map from which a 1x1 kernel's product over the entire batch is not worth timing."""


class Candidate(NamedTuple):
    """One way to compute a pass."""

    run: Callable[..., Any]
    need: Need
    one_by_one: bool = False
    """Whether it takes a sample at a time though more would fit."""
    by_sample: bool = False
    """Whether each sample is launched by itself."""


Candidates = Dict[str, Candidate]


def reference(kind: str, sizes: Sizes) -> Candidate:
    """Return the im2col that computes the pass `kind` of any geometry, to compare with and to fall back on."""
    if kind == BOTH:
        return Candidate(_both_by_columns, sizes.columns_weight())
    run = {FORWARD: columns.forward, INPUT: columns.input_gradient, WEIGHT: columns.weight_gradient}[kind]
    need = {FORWARD: sizes.columns_forward, INPUT: sizes.columns_input, WEIGHT: sizes.columns_weight}[kind]
    return Candidate(run, need())


def _both_by_columns(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry
) -> Tuple[torch.Tensor, torch.Tensor]:
    return columns.input_gradient(dy, weight, (x.shape[2], x.shape[3]), shape), columns.weight_gradient(dy, x, shape)


def candidates(  # noqa: PLR0913, PLR0917 - what decides them
    kind: str,
    x: Tuple[int, ...],
    weight: Tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    shape: Geometry,
) -> Candidates:
    """Return what computes the pass `kind` of these sizes; for BOTH perhaps nothing."""
    sizes = Sizes(x, weight, shape, dtype, device)
    if kind == BOTH and sizes.sums.casts:
        return {}  # what is lowered once serves a half's product and a float32 one only where the device makes both
    if shape.groups == 1 and shape.kernel == (1, 1) and shape.padding == (0, 0):
        return _pointwise_candidates(kind, sizes, shape)
    found = _column_candidates(kind, sizes, shape)
    wide = dtype in (torch.float32, torch.float64)
    if shape.groups == x[1]:
        found.update(_depthwise_candidates(kind, sizes, shape))
        if device.type == "cuda" and depthwise_aten.takes(x, shape, weight[0]):
            found.update(_aten_candidates(kind, sizes, shape))
    if shape.groups == 1:
        if lowers(shape):
            found.update(_row_candidates(kind, sizes, shape, wide=wide))
            if device.type == "cpu":
                found.update(_strip_candidates(kind, sizes, shape, wide=wide))
        if wide and takes_winograd(shape):
            found.update(_winograd_candidates(kind, sizes, device))
    if device.type == "cpu" and x[0] > 1:
        found.update(
            {f"{name}/1": item._replace(one_by_one=True) for name, item in found.items() if _fits_caches(name)}
        )
    return found


def _column_candidates(kind: str, s: Sizes, shape: Geometry) -> Candidates:
    found = {} if kind == BOTH else {"columns": reference(kind, s)}
    if kind in (FORWARD, WEIGHT):
        run = columns.forward if kind == FORWARD else columns.weight_gradient
        found["im2col"] = found["columns"]._replace(run=partial(run, lower=columns.unfolded))
    elif columns_gradient.takes(shape):
        run = columns_gradient.both_gradients if kind == BOTH else columns_gradient.input_gradient
        found["im2col"] = Candidate(run, s.columns_of_gradient())
    return found


def lowers(shape: Geometry) -> bool:
    """Whether MEC takes the geometry: rows undilated, and no output made of padding alone."""
    reach = shape.dilation[1] * (shape.kernel[1] - 1)
    return shape.dilation[0] == 1 and shape.padding[0] < shape.kernel[0] and shape.padding[1] <= reach


def takes_winograd(shape: Geometry) -> bool:
    """Whether Winograd takes the geometry."""
    fits = shape.kernel == (3, 3) and shape.stride == shape.dilation == (1, 1) and max(shape.padding) <= 2
    return fits and min(shape.out) >= 4


def _fits_caches(name: str) -> bool:
    return name in {"columns", "mec", "direct", "subpixel", "shifted", "tiles", "taps"}


def _row_candidates(kind: str, s: Sizes, shape: Geometry, *, wide: bool) -> Candidates:
    if kind == FORWARD:
        found = {
            "mec": Candidate(mec.forward, s.mec_forward()),
            "direct": Candidate(direct.forward, s.direct_forward(), by_sample=True),
        }
        if wide and shape.stride == (1, 1):
            found["shifted"] = Candidate(shifted.forward, s.shifted_forward())
        return found
    if kind == WEIGHT:
        found = {"mec": Candidate(mec.weight_gradient, s.mec_weight())}
        if wide:
            found["direct"] = Candidate(direct.weight_gradient, s.direct_weight(), by_sample=True)
            if shape.stride == (1, 1):
                found["shifted"] = Candidate(shifted.weight_gradient, s.shifted_weight())
        return found
    if shape.stride == (1, 1):
        return _gradients_of_stride_one(kind, s, wide=wide)
    if kind == BOTH or shape.dilation != (1, 1):
        return {}
    found = {"subpixel": Candidate(subpixel.input_gradient, s.subpixel_input())}
    if wide:
        found["shifted"] = Candidate(shifted.strided_input_gradient, s.shifted_strided_input())
    return found


def _strip_candidates(kind: str, s: Sizes, shape: Geometry, *, wide: bool) -> Candidates:
    strips = direct_strips
    if kind == INPUT and shape.stride != (1, 1):
        fits = shape.dilation == (1, 1)
        return {"direct-strips": Candidate(strips.strided_input_gradient, s.strips_strided_input())} if fits else {}
    if kind == BOTH or (kind == WEIGHT and not wide):
        return {}
    run = {FORWARD: strips.forward, INPUT: strips.input_gradient, WEIGHT: strips.weight_gradient}[kind]
    need = {FORWARD: s.strips_forward, INPUT: s.strips_input, WEIGHT: s.strips_weight}[kind]
    return {"direct-strips": Candidate(run, need())}


def _gradients_of_stride_one(kind: str, s: Sizes, *, wide: bool) -> Candidates:
    if kind == BOTH:
        found = {"mec": Candidate(mec.both_gradients, s.mec_both())}
        return {**found, "direct": Candidate(direct.both_gradients, s.direct_both(), by_sample=True)} if wide else found
    found = {
        "mec": Candidate(mec.input_gradient, s.mec_input()),
        "direct": Candidate(direct.input_gradient, s.direct_input(), by_sample=True),
    }
    return {**found, "shifted": Candidate(shifted.input_gradient, s.shifted_input())} if wide else found


def _winograd_candidates(kind: str, s: Sizes, device: torch.device) -> Candidates:
    if kind == BOTH:
        return {}
    if device.type == "cpu":
        strips = winograd_strips
        run = {FORWARD: strips.forward, INPUT: strips.input_gradient, WEIGHT: strips.weight_gradient}[kind]
        return {"winograd": Candidate(run, s.winograd_strips(of_input=kind == INPUT))}
    run = {FORWARD: winograd.forward, INPUT: winograd.input_gradient, WEIGHT: winograd.weight_gradient}[kind]
    need = {FORWARD: s.winograd_forward, INPUT: s.winograd_input, WEIGHT: s.winograd_weight}[kind]
    return {"winograd": Candidate(run, need())}


def _pointwise_candidates(kind: str, s: Sizes, shape: Geometry) -> Candidates:
    if kind == BOTH:
        return {}
    at = (FORWARD, INPUT, WEIGHT).index(kind)
    by_sample = (pointwise.forward, pointwise.input_gradient, pointwise.weight_gradient)[at]
    whole = (pointwise.whole_forward, pointwise.whole_input_gradient, pointwise.whole_weight_gradient)[at]
    need = s.pointwise_weight() if kind == WEIGHT else s.pointwise()
    found = {"pointwise": Candidate(by_sample, need)}
    if kind == FORWARD:
        found["pointwise-turned"] = Candidate(pointwise.turned_forward, need)
    if shape.out[0] * shape.out[1] <= WHOLE_PIXELS:
        need = s.pointwise_whole_weight() if kind == WEIGHT else s.pointwise_whole()
        found["pointwise-whole"] = Candidate(whole, need)
    return found


def _depthwise_candidates(kind: str, s: Sizes, shape: Geometry) -> Candidates:
    single = s.outputs == s.channels
    if kind == BOTH:
        return {"tiles": Candidate(depthwise.both_gradients, s.tiles_both())} if single else {}
    at = (FORWARD, INPUT, WEIGHT).index(kind)
    tiles = (depthwise.forward, depthwise.input_gradient, depthwise.weight_gradient)[at]
    taps = (depthwise_taps.forward, depthwise_taps.input_gradient, depthwise_taps.weight_gradient)[at]
    found = {
        "tiles": Candidate(tiles, (s.tiles_forward, s.tiles_input, s.tiles_weight)[at]()),
        "taps": Candidate(taps, s.taps_input() if kind == INPUT else s.taps()),
    }
    if single and s.height * s.width * shape.out[0] * shape.out[1] <= DENSE_PIXELS:
        dense = (depthwise_dense.forward, depthwise_dense.input_gradient, depthwise_dense.weight_gradient)[at]
        found["dense"] = Candidate(dense, s.dense_weight() if kind == WEIGHT else s.dense())
    return found


def _aten_candidates(kind: str, s: Sizes, shape: Geometry) -> Candidates:
    run = {FORWARD: depthwise_aten.forward}.get(kind)
    if kind == INPUT and depthwise_aten.turns(shape, s.outputs):
        run = depthwise_aten.input_gradient
    if depthwise_aten.has_backward():
        run = {WEIGHT: depthwise_aten.weight_gradient, BOTH: depthwise_aten.both_gradients}.get(kind, run)
    return {} if run is None else {"aten": Candidate(run, s.aten())}
