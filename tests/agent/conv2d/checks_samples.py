"""PyTorch's own test material for conv2d, which every wheel ships: its samples and its wrong inputs."""

from __future__ import annotations

import itertools
import re
from typing import Any

import torch
from checking import Skip
from comparing import differences, each_algorithm
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
