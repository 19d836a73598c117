"""Tells a wrong pass of the Conv2d patch from a network that amplifies rounding, for networks.py; it builds no network.

A convolution is linear in each operand, so that each pass can be compared by itself with float64 for the very operands
that it was given: no ReLU and no normalization of few numbers amplifies anything there. Beside it stands what native's
own gradients do when each convolution's result is changed by as much as the patch rounded it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from rocm_agent.conv2d import fallback

Kept = tuple[str, tuple[Any, ...], Any]


class Pass(NamedTuple):
    """How far a pass was from float64, and native's for the same operands, relative L2."""

    kind: str
    name: str
    ours: float
    native: float


@contextlib.contextmanager
def kept() -> Iterator[list[Kept]]:
    """Keep operands and results of all passes meanwhile, as copies: a ReLU may change a result in place."""
    found: list[Kept] = []
    names = ("forward", "input_gradient", "weight_gradient", "both_gradients")
    before = {name: getattr(fallback, name) for name in names}

    def keeping(name: str) -> Callable[..., Any]:
        def run(*operands: Any) -> Any:
            made = before[name](*operands)
            found.append((name, _copied(operands), _copied(made)))
            return made

        return run

    for name in names:
        setattr(fallback, name, keeping(name))
    try:
        yield found
    finally:
        for name, function in before.items():
            setattr(fallback, name, function)


def _copied(value: Any) -> Any:
    if type(value) is tuple:  # and no Geometry, which is one too
        return tuple(_copied(item) for item in value)
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def passes(found: list[Kept]) -> list[Pass]:
    """Return how far each was from float64, the patch being off."""
    return [each for kind, operands, made in found for each in _passes(kind, operands, made)]


def wrong(measured: list[Pass], times: float, floor: float) -> str:
    """Return which pass is further from float64 than `times` native's distance and than `floor`; "" where none is."""
    for each in measured:
        if not each.ours <= max(times * each.native, floor):  # as NaN is not
            return f"the {each.kind} pass of {each.name} is {each.ours:.1e} from float64, native's {each.native:.1e}"
    return ""


def rounding(measured: list[Pass]) -> float:
    """Return how far results were from float64, the root of the mean of the squares over all layers."""
    forward = [each.ours**2 for each in measured if each.kind == "forward"]
    return float((sum(forward) / max(1, len(forward))) ** 0.5)


def _passes(kind: str, operands: tuple[Any, ...], made: Any) -> Iterator[Pass]:
    shape, plan = operands[-2:]
    name = str(shape) if plan.case is None else plan.case.exact
    if kind == "forward":
        x, weight, bias, *_ = operands
        yield _pass("forward", name, made, lambda cast: _forward(cast(x), cast(weight), cast(bias), shape))
    elif kind == "input_gradient":
        dy, weight, size, *_ = operands
        yield _input(name, made, dy, weight, (*size,), shape)
    elif kind == "weight_gradient":
        dy, x, *_ = operands
        yield _weight(name, made, dy, x, shape)
    else:
        dy, x, weight, *_ = operands
        yield _input(name, made[0], dy, weight, (*x.shape[2:],), shape)
        yield _weight(name, made[1], dy, x, shape)


def _pass(kind: str, name: str, made: torch.Tensor, run: Callable[[Callable[[Any], Any]], torch.Tensor]) -> Pass:
    exact = run(lambda operand: None if operand is None else operand.double())
    size = float(exact.norm().clamp_min(1e-300))
    native = run(lambda operand: operand)
    ours, theirs = (float((each.double() - exact).norm()) / size for each in (made, native))
    return Pass(kind, name, ours, theirs)


def _forward(x: Any, weight: Any, bias: Any, shape: Any) -> Any:
    return torch.conv2d(x, weight, bias, shape.stride, shape.padding, shape.dilation, shape.groups)


def _input(  # noqa: PLR0917 - what a backward pass has
    name: str, made: Any, dy: Any, weight: Any, size: tuple[int, ...], shape: Any
) -> Pass:
    def run(cast: Callable[[Any], Any]) -> Any:
        like = cast(dy).new_empty((dy.shape[0], weight.shape[1] * shape.groups, *size))
        return _backward(cast(dy), like, cast(weight), shape, [True, False, False])[0]

    return _pass("input", name, made, run)


def _weight(name: str, made: Any, dy: Any, x: Any, shape: Any) -> Pass:
    def run(cast: Callable[[Any], Any]) -> Any:
        like = cast(dy).new_empty(made.shape)
        return _backward(cast(dy), cast(x), like, shape, [False, True, False])[1]

    return _pass("weight", name, made, run)


def _backward(dy: Any, x: Any, weight: Any, shape: Any, wanted: list[bool]) -> Any:
    return torch.ops.aten.convolution_backward(
        *(dy, x, weight, None, shape.stride, shape.padding, shape.dilation),
        *(False, (0, 0), shape.groups, wanted),
    )


@contextlib.contextmanager
def perturbed(net: torch.nn.Module, size: float, seed: int) -> Iterator[None]:
    """Change the result of each Conv2d of the network by noise of `size`, relative L2, meanwhile."""
    generators: dict[torch.device, torch.Generator] = {}

    def change(_: Any, __: Any, y: torch.Tensor) -> torch.Tensor:
        generator = generators.setdefault(y.device, torch.Generator(y.device).manual_seed(seed))
        noise = torch.randn(y.shape, generator=generator, dtype=torch.float32, device=y.device).to(y.dtype)
        return y + noise * (size * y.detach().norm() / max(1, y.numel()) ** 0.5)

    hooks = [each.register_forward_hook(change) for each in net.modules() if isinstance(each, torch.nn.Conv2d)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
