"""A result is a tensor of its own, as native's: changed in place, detached, saved and laid out like it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from comparing import unlike
from patching import patched
from rocm_agent.conv2d import ALGORITHMS, limits, planner
from torch import nn

WAYS = [(algorithm, scope) for algorithm in ALGORITHMS for scope in ("modules", "all")]


def layers() -> Iterator[tuple[str, nn.Conv2d, torch.Tensor]]:
    """Yield a layer of each kind, with and without bias, and an input for it; the same numbers each time."""
    torch.manual_seed(2)
    for name, size, options in (
        ("1x1", 9, {"kernel_size": 1}),
        ("1x1 with a stride", 9, {"kernel_size": 1, "stride": 2}),
        ("1x1 on a large map", 70, {"kernel_size": 1}),
        ("3x3", 9, {"kernel_size": 3, "padding": 1}),
        ("3x3 on a large map", 132, {"kernel_size": 3, "padding": 1}),
        ("3x3 on whole tiles", 16, {"kernel_size": 3, "padding": 1}),
        ("3x3 with a stride", 9, {"kernel_size": 3, "stride": 2, "padding": 1}),
        ("a patch", 8, {"kernel_size": 4, "stride": 4}),
        ("the whole map", 5, {"kernel_size": 5}),
        ("depthwise", 9, {"kernel_size": 3, "padding": 1, "groups": 8}),
        ("depthwise, several outputs", 9, {"kernel_size": 3, "groups": 8}),
        ("grouped", 9, {"kernel_size": 3, "padding": 1, "groups": 2}),
        ("same", 9, {"kernel_size": 4, "padding": "same"}),
        ("circular", 9, {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
    ):
        outputs = 16 if name.endswith("outputs") else 8
        for bias, batch in ((True, (3,)), (False, (1,)), (True, ())):  # the last without a batch
            if name == "circular" and not batch:
                continue  # which an old PyTorch does not pad
            x = torch.randn(*batch, 8, size, size)
            yield f"{name}, {bias=}, {batch=}", nn.Conv2d(8, outputs, bias=bias, **options), x


def used(layer: nn.Conv2d, x: torch.Tensor) -> list[Any]:
    """Return the results and gradients of what may be done to a convolution's result."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = nn.functional.silu(layer(x), inplace=True)
    y = y.mul_(2).add_(layer.weight.mean())
    y[..., 0].mul_(3)
    y.square().mean().backward()
    with torch.no_grad():
        late = layer(x)
    if x.dim() == 4:  # without a batch native's is a view itself
        late.add_(layer.weight.sum())  # of a graph, though made without one
    return [y, late, x.grad, *(parameter.grad for parameter in layer.parameters())]


def check_results_are_changed_in_place_as_natives() -> None:
    planner.use(limits.Limits(folder=None, tune_s=0.0))
    for name, layer, x in layers():
        expected = used(layer, x)
        for way in WAYS:
            with patched(*way):
                found = used(layer, x)
            for a, e in zip(found, expected, strict=True):
                assert not unlike(f"{name}, {way}", a, e, 1e-5)


def check_results_and_gradients_are_no_views_and_hold_no_more_memory_than_they_need() -> None:
    planner.use(limits.Limits(folder=None, tune_s=0.0))
    for name, layer, x in layers():
        for way in WAYS:
            if x.dim() == 3 and way[1] == "all":
                continue  # where native itself takes a view
            for graph in (True, False):
                with patched(*way), torch.set_grad_enabled(graph):
                    y = layer(x)
                found = [y]
                if graph and way[0] == "planned":
                    found += torch.autograd.grad(y.square().sum(), tuple(layer.parameters()))
                for tensor in found:
                    assert not tensor._is_view(), (name, way, graph)
                    if hasattr(tensor, "untyped_storage") and way[0] == "planned":
                        assert tensor.untyped_storage().nbytes() == tensor.nbytes, (name, way)
                y.detach_()
                assert copy.deepcopy(y).shape == y.shape


def check_only_what_gradients_need_is_held_and_the_rest_may_change_in_place() -> None:
    x = torch.randn(2, 4, 9, 9)
    for frozen in ("weight", "x"):
        layer = nn.Conv2d(4, 4, 3, bias=False)
        layer.weight.requires_grad_(frozen != "weight")
        results = []
        for way in (("planned", "modules"), None):
            given = (x * 1).requires_grad_() if frozen == "weight" else x.clone()
            held = given * 1
            with patched(*way) if way else nullcontext():
                y = layer(held)
            with torch.no_grad():
                if way:
                    (held if frozen == "weight" else layer.weight.data).mul_(1)
                    if frozen == "weight":
                        held.add_(1)
            results.append(torch.autograd.grad(y.square().sum(), given if frozen == "weight" else layer.weight)[0])
        assert not unlike(frozen, *results)


def strides(y: torch.Tensor) -> list[int]:
    """Return the strides that say where an element lies."""
    return [stride for size, stride in zip(y.shape, y.stride(), strict=True) if size > 1]


def check_memory_formats_are_natives_in_both_scopes() -> None:
    planner.use(limits.Limits(folder=None, tune_s=0.0))
    for name, layer, x in layers():
        if x.dim() == 3:
            continue
        # Everything is contiguous as it is made, whichever of the two that is asked for.
        for which in ("neither", "x", "weight", "both"):
            moved, given = copy.deepcopy(layer), x
            if which in {"weight", "both"}:
                moved = moved.to(memory_format=torch.channels_last)
            if which in {"x", "both"}:
                given = x.contiguous(memory_format=torch.channels_last)
            with torch.no_grad():
                expected = moved(given)
            for way in WAYS:
                for graph in (True, False):
                    with patched(*way), torch.set_grad_enabled(graph):
                        y = moved(given)
                    assert strides(y) == strides(expected), (name, which, way, y.stride())
                    assert not unlike(name, y, expected, 1e-5)


def check_a_gradient_of_a_gradient_of_a_frozen_layer_is_natives() -> None:
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64, requires_grad=True)
    for frozen in (True, False):
        layer = nn.Conv2d(4, 6, 3, padding=1, groups=2).double().requires_grad_(not frozen)
        results = []
        for context in (patched(), nullcontext()):
            with context:
                y = layer(x).square().sum()
                (dx,) = torch.autograd.grad(y, x, create_graph=True)
                results.append(torch.autograd.grad(dx.square().sum(), x)[0])
        assert not unlike("twice", *results)


def check_in_place_layers_inside_checkpoints_and_hooks_give_natives_gradients() -> None:
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415 - here only

    torch.manual_seed(4)
    layers_ = nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1), nn.SiLU(inplace=True)
    model = nn.Sequential(*layers_)
    model[0].register_forward_hook(lambda module, given, y: y.mul_(2))
    x = torch.randn(2, 4, 8, 8)
    for reentrant in (True, False):
        results = []
        for way in (*WAYS, None):
            model.zero_grad()
            with patched(*way) if way else nullcontext():
                checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant).square().mean().backward()
            results.append([parameter.grad for parameter in model.parameters()])
        for result in results[:-1]:
            for a, e in zip(result, results[-1], strict=True):
                assert not unlike("gradient", a, e, 1e-5)
