"""Judges the passes of layers that are hard to compute precisely: every way that the Conv2d patch has, beside native.

    PYTHONPATH=supervisor/agent/path PYTHON tests/bench/hard_passes.py [--device cuda] [--only TEXT] [--all]

PYTHON needs torch alone. Each layer runs in float32 (TF32 as PyTorch's default has it, and off), float16, bfloat16, in
channels_last, and under autocast; forward, and the gradients of input and weight, apart and together. Operands are
random, or lean: an input of one sign and a small gradient that sums to zero, as before a normalization, so that shares
of a sum cancel, and products are too small for float16. A line of the table is a layer and a mode: the worst of all
ways and passes by its distance from float64, relative L2, beside native's for the same operands. --all prints every
pass. Status 1 where one is further than BOUNDS allows, or not run within --seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from rocm_agent.conv2d import conv2d, limits, planner
from rocm_agent.conv2d.candidates import PASSES
from rocm_agent.conv2d.case import Case
from rocm_agent.conv2d.geometry import Geometry, geometry

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Layer(NamedTuple):
    """A convolution of a public network, of two samples."""

    name: str
    channels: tuple[int, int]
    kernel: int
    size: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def x(self) -> tuple[int, int, int, int]:
        """Return the input's sizes."""
        return (2, self.channels[0], self.size, self.size)

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """Return the weight's sizes."""
        return (self.channels[1], self.channels[0] // self.groups, self.kernel, self.kernel)

    @property
    def shape(self) -> Geometry:
        """Return what the patch makes of the arguments."""
        pairs = [(value, value) for value in (self.stride, self.padding, 1)]
        return geometry(self.x, self.weight, None, *pairs, self.groups)


KNOWN = (
    Layer("fasterrcnn mobilenet, 1x1", (16, 64), 1, 400),
    Layer("focalnet, depthwise 3x3", (96, 96), 3, 56, padding=1, groups=96),
    Layer("focalnet, depthwise 5x5", (96, 96), 5, 56, padding=2, groups=96),
    Layer("focalnet, depthwise 5x5, last", (768, 768), 5, 7, padding=2, groups=768),
    Layer("mobilevit, stem", (3, 16), 3, 256, stride=2, padding=1),
    Layer("fasterrcnn v2, 3x3, first level", (256, 256), 3, 200, padding=1),
    Layer("fasterrcnn v2, 3x3, fourth level", (256, 256), 3, 25, padding=1),
    Layer("fasterrcnn v2, 3x3, stride 2", (256, 256), 3, 50, stride=2, padding=1),
    Layer("retinanet, 3x3", (256, 36), 3, 100, padding=1),
    Layer("alexnet, first", (3, 64), 11, 224, stride=4, padding=2),
    Layer("alexnet, second", (64, 192), 5, 27, padding=2),
    Layer("alexnet, third", (192, 384), 3, 13, padding=1),
)
"""A sweep over public networks found passes of these layers, or of layers like them, further from float64 than others.

The first is the longest sum; stems and depthwise layers have the most shares of one; AlexNet's the largest kernels.
"""


class Bound(NamedTuple):
    """How far a pass may be from float64: so many times native's distance, or `floor` where that is more."""

    times: float
    floor: float


BOUNDS = {torch.float32: Bound(10.0, 5e-6), torch.float16: Bound(2.0, 5e-4), torch.bfloat16: Bound(2.0, 4e-3)}
WINOGRAD = Bound(10.0, 2e-5)
"""Of Winograd's transforms, which round more than a sum does, as the setting that allows them says."""


class Mode(NamedTuple):
    """How a layer is run."""

    name: str
    dtype: torch.dtype
    tf32: bool = False
    last: bool = False
    """Whether operands are in channels_last."""
    autocast: bool = False


MODES = (
    Mode("float32", torch.float32, tf32=True),
    Mode("float32, TF32 off", torch.float32),
    Mode("float16", torch.float16),
    Mode("bfloat16", torch.bfloat16),
    Mode("float32, channels_last", torch.float32, last=True),
    Mode("float16, channels_last", torch.float16, last=True),
    Mode("AMP float16", torch.float16, autocast=True),
    Mode("AMP bfloat16", torch.bfloat16, autocast=True),
)


class Row(NamedTuple):
    """How far one way of one pass was from float64, and native's way."""

    layer: str
    mode: str
    operands: str
    kind: str
    way: str
    ours: float
    native: float
    bound: float

    @property
    def right(self) -> bool:
        """Whether the distance is within the bound, which NaN is not."""
        return self.ours <= self.bound


def operands_of(layer: Layer, mode: Mode, device: str, *, lean: bool) -> Operands:
    """Return x, weight and the gradient of the result, the same numbers each time."""
    generator = torch.Generator().manual_seed(5)
    x, weight, dy = (
        torch.randn(size, generator=generator)
        for size in (layer.x, layer.weight, (2, layer.channels[1], *layer.shape.out))
    )
    if lean:
        x = x.relu_() + 1
        dy = (dy - dy.mean((0, 2, 3), keepdim=True)) * 2.0**-16
    weight *= (layer.weight[1] * layer.kernel**2) ** -0.5
    made = [each.to(device, mode.dtype) for each in (x, weight, dy)]
    if mode.last:
        made = [each.contiguous(memory_format=torch.channels_last) for each in made]
    return made[0], made[1], made[2]


def native_passes(layer: Layer, given: Operands) -> dict[str, tuple[torch.Tensor, ...]]:
    """Return native's results of the passes, by their names."""
    x, weight, dy = given
    y = torch.conv2d(x, weight, None, layer.stride, layer.padding, 1, layer.groups)
    pairs = [(value, value) for value in (layer.stride, layer.padding, 1)]
    more = (False, (0, 0), layer.groups, [True, True, False])
    dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, weight, None, *pairs, *more)
    return dict(zip(PASSES, ((y,), (dx,), (dw,), (dx, dw)), strict=True))


def ways(
    layer: Layer, mode: Mode, given: Operands, kinds: tuple[str, ...]
) -> Iterator[tuple[str, str, tuple[torch.Tensor, ...]]]:
    """Yield pass, name and results, as a training gets them, of whatever may compute a pass."""
    (x, weight, dy), shape = given, layer.shape
    case = Case(layer.x, layer.weight, mode.dtype, x.device, shape, limits.Limits(folder=None, tune_s=0.0))
    arguments = ((x, weight, None, shape), (dy, weight, (*layer.x[2:],), shape), (dy, x, shape), (dy, x, weight, shape))
    for kind, each in zip(PASSES, arguments, strict=True):
        for name, candidate in case.candidates(kind).items() if kind in kinds else ():
            with torch.no_grad():
                made = case.function(kind, candidate)(*each)
            made = made if isinstance(made, tuple) else (made,)
            yield kind, name, tuple(result.to(mode.dtype) for result in made)


def planned_ways(layer: Layer, mode: Mode, given: Operands) -> Iterator[tuple[str, str, tuple[torch.Tensor, ...]]]:
    """Yield the same of a layer in a training under autocast, as the rules choose."""
    x, weight = (each.float().requires_grad_() for each in given[:2])
    with torch.autocast(x.device.type, dtype=mode.dtype):
        y = conv2d(x, weight, None, layer.stride, layer.padding, 1, layer.groups, algorithm="planned")
    y.backward(given[2])
    yield "forward", "autocast", (y.detach(),)
    assert x.grad is not None
    assert weight.grad is not None
    yield "both", "autocast", (x.grad, weight.grad)


def rows(layer: Layer, mode: Mode, device: str, *, lean: bool, kinds: tuple[str, ...] = PASSES) -> Iterator[Row]:
    """Yield a row for every way of every pass, or of those in `kinds`; gradients made together are two rows."""
    if device != "cpu":  # on the CPU there is no such mode, and the flags may be locked
        torch.backends.cudnn.allow_tf32 = mode.tf32
    given = operands_of(layer, mode, device, lean=lean)
    wide = (given[0].double(), given[1].double(), given[2].double())
    exact, native = native_passes(layer, wide), native_passes(layer, given)
    found = planned_ways(layer, mode, given) if mode.autocast else ways(layer, mode, given, kinds)
    for kind, way, made in found:
        each = zip(made, native[kind], exact[kind], ("input", "weight"), strict=False)
        for ours, theirs, e, gradient in each:
            ours_far, far = distance(ours, e), distance(theirs, e)
            times, floor = WINOGRAD if way.startswith("winograd") else BOUNDS[mode.dtype]
            name = f"{kind}, {gradient}" if kind == "both" else kind
            about = (layer.name, mode.name, "lean" if lean else "random", name, way)
            yield Row(*about, ours_far, far, max(times * far, floor))


def distance(made: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the distance relative to the size of `exact`, in L2."""
    return float((made.double() - exact).norm() / exact.norm().clamp_min(1e-300))


def table(found: list[Row]) -> Iterator[str]:
    """Yield a line for each layer and mode, of what came closest to its bound or went furthest beyond."""
    worst: dict[tuple[str, str], Row] = {}
    for row in found:
        known = worst.setdefault((row.layer, row.mode), row)
        if not row.ours / row.bound <= known.ours / known.bound:
            worst[row.layer, row.mode] = row
    for row in worst.values():
        yield line(row)


def line(row: Row) -> str:
    """Return the row as text."""
    what = f"{row.kind} by {row.way}, {row.operands}"
    verdict = "ok" if row.right else "WRONG"
    return f"{row.layer:32} {row.mode:23} {what:38} {row.ours:.1e} native {row.native:.1e} {verdict}\n"


def main() -> int:
    """Print the table and return 1 where a pass is wrong or was not run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="layers whose names contain this")
    parser.add_argument("--all", action="store_true", help="print every pass, and not the worst alone")
    parser.add_argument("--seconds", type=float, default=55.0)
    given = parser.parse_args()
    planner.use(limits.Limits(folder=None, tune_s=0.0))
    found: list[Row] = []
    began, left = time.perf_counter(), 0
    for layer in (each for each in KNOWN if given.only in each.name):
        for mode in MODES:
            for lean in (False, True):
                if time.perf_counter() - began > given.seconds:
                    left += 1
                    continue
                found += rows(layer, mode, given.device, lean=lean)
    for text in (line(row) for row in found) if given.all else table(found):
        sys.stdout.write(text)
    wrong = [row for row in found if not row.right]
    for row in sorted(wrong, key=lambda row: row.bound / row.ours)[:40]:
        sys.stdout.write(line(row))
    seconds = time.perf_counter() - began
    summary = f"{len(found)} passes, {len(wrong)} wrong, {left} layers and modes not run, {seconds:.0f} s"
    sys.stdout.write(f"{summary}, torch {torch.__version__} on {_named(given.device)}\n")
    return 1 if wrong or left or not found else 0


def _named(device: str) -> Any:
    return torch.cuda.get_device_name() if device == "cuda" else device


if __name__ == "__main__":
    raise SystemExit(main())
