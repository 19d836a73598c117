"""A pass that raises in somebody's training: reported once, replaced, and the caller's own errors stay the caller's."""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from comparing import unlike
from patching import kernels, patched
from rocm_agent import events
from rocm_agent.conv2d import candidates, case, fallback, limits, planner, warn_once
from rocm_agent.conv2d.geometry import geometry
from rocm_agent.conv2d.kernels import Kernels
from torch import nn

SCOPES = ("modules", "all")
SIZES = (2, 3, 24, 24)
"""Large enough for other families than im2col."""


def net(channels: tuple[int, ...] = (3, 8, 12)) -> nn.Sequential:
    """Return convolutions of different layers with what trainings put between them, the same numbers each time."""
    torch.manual_seed(6)
    made: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        made += [nn.Conv2d(before, after, 3, padding=1), nn.SiLU(inplace=True)]
    return nn.Sequential(*made)


def trained(model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    """Return the weights after a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(SIZES, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@contextlib.contextmanager
def raising(error: type[Exception] = RuntimeError, text: str = "no kernel for this") -> Iterator[list[str]]:
    """Have every family but im2col raise; yield the names of the calls that did."""
    calls: list[str] = []
    whole = candidates.candidates

    def broken(name: str) -> Any:
        def run(*_: Any, **__: Any) -> Any:
            calls.append(name)
            raise error(text)

        return run

    def found(kind: str, *arguments: Any) -> candidates.Candidates:
        return {
            name: each if name == "columns" else each._replace(run=broken(f"{kind} {name}"))
            for name, each in whole(kind, *arguments).items()
        }

    case.candidates = found
    try:
        yield calls
    finally:
        case.candidates = whole
        planner.use(limits.Limits(folder=None, tune_s=0.0))


@contextlib.contextmanager
def reported() -> Iterator[list[Any]]:
    """Yield the list of what is reported to the daemon and warned of."""
    seen: list[Any] = []
    write, known = events.write, set(warn_once._given)
    events.write = lambda event, **fields: seen.append((event, fields))
    warn_once._given.clear()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield seen
        seen += [str(each.message) for each in caught if str(each.message).startswith("conv2d:")]
    finally:
        events.write = write
        warn_once._given.update(known)


def check_a_family_that_raises_in_a_training_is_replaced_once_a_layer_and_reported_with_its_sizes() -> None:
    expected = trained(net())
    for scope in SCOPES:
        planner.use(limits.Limits(folder=None, tune_s=0.0))
        with raising() as calls, reported() as seen, patched("planned", scope):
            found = trained(net())
        for a, e in zip(found, expected, strict=True):
            assert not unlike(scope, a, e, 1e-5)
        reported_of = [each[1] for each in seen if isinstance(each, tuple) and each[0] == "conv2d_failed"]
        assert len(reported_of) == 2 == len(calls), (scope, reported_of, calls)
        assert {each["instead"] for each in reported_of} == {"unfold"}
        assert "3>8/1 k3x3" in reported_of[0]["layer"]
        assert "2x3x24x24" in reported_of[0]["sizes"]
        assert "no kernel for this" in reported_of[0]["error"]
        assert sum("raised" in each for each in seen if isinstance(each, str)) == 2


def check_a_pass_that_raises_only_in_backward_or_only_later_is_replaced_too() -> None:
    expected = trained(net())
    for kind in candidates.PASSES:
        for scope in SCOPES:
            planner.use(limits.Limits(folder=None, tune_s=0.0))
            model, calls = net(), []
            with reported() as seen, patched("planned", scope):
                trained(model, 1)  # all is chosen
                pairs = (1, 1), (1, 1), (1, 1)  # the operators' kernels know of no bias in backward
                shapes = [geometry(SIZES, (8, 3, 3, 3), bias, *pairs, 1) for bias in ((8,), None)]

                def broken(*_: Any) -> Any:
                    calls.append(1)  # noqa: B023 - called at once
                    raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")

                for shape in shapes if scope == "all" else shapes[:1]:
                    chosen = planner.plan(SIZES, (8, 3, 3, 3), torch.float32, torch.device("cpu"), shape)
                    chosen.both = None
                    chosen.give(kind, broken)
                found = trained(model, 2)
            for a, e in zip(found, expected, strict=True):
                assert not unlike(f"{kind} {scope}", a, e, 1e-5)
            # A first layer has no input to make a gradient for, and so neither both at once.
            expected_calls = 1 if kind in (candidates.FORWARD, candidates.WEIGHT) else 0
            assert len(calls) == expected_calls == sum(isinstance(each, tuple) for each in seen), (kind, scope)


def check_after_several_layers_every_layer_is_left_to_im2col() -> None:
    channels = (3, 8, 12, 16, 20, 24)
    expected = trained(net(channels))
    for scope in SCOPES:
        planner.use(limits.Limits(folder=None, tune_s=0.0))
        with raising() as calls, reported() as seen, patched("planned", scope):
            found = trained(net(channels))
        for a, e in zip(found, expected, strict=True):
            assert not unlike(scope, a, e, 1e-4)
        assert len(calls) == fallback.LAYERS, calls
        assert sum(isinstance(each, tuple) for each in seen) == fallback.LAYERS
        assert any("computes every layer" in each for each in seen if isinstance(each, str))


def check_what_raises_outside_of_a_pass_leaves_the_layer_to_native() -> None:
    module = sys.modules["rocm_agent.conv2d.patch"]  # the package's own name for it is the function's
    expected = trained(net())
    for scope in SCOPES:
        planner.use(limits.Limits(folder=None, tune_s=0.0))
        calls: list[int] = []

        def broken(*_: Any, **__: Any) -> Any:
            calls.append(1)  # noqa: B023 - called at once
            raise TypeError("a class of tensors that nobody foresaw")

        before = module.fast_path, Kernels._compute_convolution
        module.fast_path, Kernels._compute_convolution = broken, broken
        try:
            with reported() as seen, patched("planned", scope):
                found = trained(net())
        finally:
            module.fast_path, Kernels._compute_convolution = before
            fallback.forget()
        for a, e in zip(found, expected, strict=True):
            assert not unlike(scope, a, e, 1e-5)
        assert len(calls) == 2 == sum(isinstance(each, tuple) for each in seen), (scope, calls)
        assert {each[1]["instead"] for each in seen if isinstance(each, tuple)} == {"native"}


def check_errors_of_the_caller_and_too_little_memory_go_through_and_are_reported_by_nobody() -> None:
    layer = nn.Conv2d(3, 4, 3)
    for scope in SCOPES:
        with reported() as seen, patched("planned", scope):
            wrong = torch.randn(1, 4, 8, 8), torch.randn(1, 3, 2, 2), torch.randn(1, 3, 8, 8).double(), torch.randn(3)
            for x in wrong:
                try:
                    layer(x)
                except RuntimeError:
                    continue
                raise AssertionError((scope, x.shape))
        assert not seen, seen
        assert not fallback.native_layers
        for error, text in ((MemoryError, ""), (RuntimeError, "CUDA out of memory"), (TimeoutError, "of the caller")):
            planner.use(limits.Limits(folder=None, tune_s=0.0))
            with raising(error, text) as calls, reported() as seen, patched("planned", scope):
                try:
                    nn.Conv2d(3, 8, 3, padding=1)(torch.randn(SIZES))
                except error:
                    pass
                else:
                    raise AssertionError((scope, error))
            assert calls
            assert not [each for each in seen if isinstance(each, tuple)], seen


def check_no_convolution_kernel_runs_where_a_family_raised() -> None:
    planner.use(limits.Limits(folder=None, tune_s=0.0))
    with raising(), warnings.catch_warnings(), patched():
        warnings.simplefilter("ignore")
        assert not [name for name in kernels(net(), torch.randn(SIZES)) if "conv" in name]
