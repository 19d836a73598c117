"""PyTorch's own test material for convolutions, which every wheel ships: its samples and its wrong inputs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import torch
from checking import Skip
from comparing import differences, each_algorithm, unlike
from patching import patched
from torch.nn.functional import conv2d as native


def op_info() -> Any:
    """Return PyTorch's own test material for conv2d, which every wheel ships."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - may be unimportable
    except ImportError as error:
        raise Skip(f"PyTorch's own samples need one more package here: {error}") from None
    return next(info for info in op_db if info.name == "nn.functional.conv2d")


def check_pytorchs_own_samples_give_natives_results() -> None:
    for dtype, function in itertools.product((torch.float32, torch.float64, torch.complex64), each_algorithm()):
        samples = list(op_info().sample_inputs("cpu", dtype, requires_grad=True))
        assert len(samples) >= 20
        for sample in samples:
            weight, bias = (*sample.args, None)[:2]
            found = differences(function, native, (sample.input, weight, bias), sample.kwargs)
            assert not found, (sample.input.shape, weight.shape, sample.kwargs, found)


def check_pytorchs_own_wrong_inputs_are_refused_with_its_errors() -> None:
    wrong = list(op_info().error_inputs("cpu"))
    assert wrong
    for case, function in itertools.product(wrong, each_algorithm()):
        sample = case.sample_input
        try:
            function(sample.input, *sample.args, **sample.kwargs)
        except case.error_type as error:
            assert re.search(case.error_regex, str(error)), (case.error_regex, str(error))  # noqa: PT017 - no pytest
        else:
            raise AssertionError(f"accepted {sample.input.shape} {sample.kwargs}")


MODULES = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "BatchNorm2d")


def module_samples(dtype: torch.dtype) -> Iterator[tuple[Any, Any, Any]]:
    """Yield PyTorch's own samples of the layers that the patch replaces: class, constructor's input, forward's."""
    try:
        from torch.testing._internal.common_modules import module_db  # noqa: PLC0415 - may be unimportable
    except ImportError as error:
        raise Skip(f"PyTorch's own samples need one more package here: {error}") from None
    for info in module_db:
        if info.module_cls.__name__ not in MODULES:
            continue
        for training in (True, False):
            made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
            for sample in made:
                yield info.module_cls, sample.constructor_input, sample.forward_input


def module_results(sample: tuple[Any, Any, Any], dtype: torch.dtype) -> list[torch.Tensor | None]:
    """Return the output of a newly made module, the gradients of input and parameters, and its buffers."""
    kind, made_with, called_with = sample
    torch.manual_seed(1)
    module = kind(*made_with.args, **{**made_with.kwargs, "dtype": dtype})
    x = called_with.args[0].detach().clone().requires_grad_()
    y = module(x)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y))
    return [y, x.grad, *(parameter.grad for parameter in module.parameters()), *module.buffers()]


def check_pytorchs_own_module_samples_give_natives_results_in_either_scope() -> None:
    compared: dict[str, int] = {}
    for sample in module_samples(torch.float64):
        expected = module_results(sample, torch.float64)
        for scope in ("modules", "all"):
            with patched("planned", scope):
                got = module_results(sample, torch.float64)
            for which, (a, e) in enumerate(zip(got, expected, strict=True)):
                # A counter of batches is a buffer too.
                same = torch.equal(a, e) if e is not None and not e.is_floating_point() else not unlike("", a, e, 1e-12)
                assert same, (sample, scope, which)
        name = sample[0].__name__
        compared[name] = compared.get(name, 0) + 1
    assert compared["Conv2d"] >= 8, compared
    assert len(compared) >= 6, compared
