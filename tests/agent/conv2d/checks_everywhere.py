"""The scope "all": no convolution or BatchNorm is left to a library, whoever calls it, and all compute the same."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import re
import warnings
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from checking import Skip
from comparing import outcome, unlike
from everything import everything, everywhere, random_layer, result_or_refusal, small_cases
from profiling import library_kernels, operators
from rocm_agent.conv2d import ALGORITHMS, is_patched, patch, unpatch
from torch import nn


def check_no_layer_runs_a_library_kernel_forward_or_backward() -> None:
    x = torch.randn(2, 4, 9, 10)

    def train() -> None:
        everything()(x).backward()

    assert library_kernels(train), "native runs them (which ones, the threads decide), and the profile shows them"
    for algorithm in ALGORITHMS:
        with everywhere(algorithm):
            assert not library_kernels(train), algorithm
            assert any("mm" in name for name in operators(train))


def check_every_layers_results_gradients_and_statistics_are_natives() -> None:
    x = torch.randn(2, 4, 9, 10, generator=torch.Generator().manual_seed(1))
    found = []
    for context in (everywhere(), everywhere("unfold"), nullcontext()):
        model, leaf = everything().double(), x.double().requires_grad_()
        with context:
            y = model(leaf)
            y.backward()
        found.append([y, leaf.grad, *(p.grad for p in model.parameters()), *model.buffers()])
    for got in found[:-1]:
        for which, (a, e) in enumerate(zip(got, found[-1], strict=True)):
            assert not unlike(str(which), a, e.double() if a.is_floating_point() else e, 1e-12), which


def check_random_layers_of_one_to_three_dimensions_give_natives_results_or_its_very_refusals() -> None:
    chance, taken, refused = random.Random(5), 0, 0
    for algorithm, count in (("planned", 500), ("unfold", 100), ("unfold_reference", 100)):
        cases = [random_layer(chance) for _ in range(count)]
        expected = [result_or_refusal(*case) for case in cases]
        with everywhere(algorithm):
            got = [result_or_refusal(*case) for case in cases]
        for (function, operands, options), a, e in zip(cases, got, expected, strict=True):
            about = (algorithm, function.__name__, operands[0].shape, operands[1].shape, options)
            if isinstance(e, str) or isinstance(a, str):
                assert a == e, about
                refused += 1
                continue
            taken += 1
            for name, item, other in zip(("y", "dx", "dw", "db"), a, e, strict=True):
                assert not unlike(name, item, other, 1e-12), about
    assert taken > 400, taken
    assert refused > 100, refused


def samples_of(name: str) -> Any:
    """Return PyTorch's own test material for an operator, which every wheel ships."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - may be unimportable
    except ImportError as error:
        raise Skip(f"PyTorch's own samples need one more package here: {error}") from None
    return next((info for info in op_db if info.name == "nn.functional." + name), None)


OPERATORS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "batch_norm")


def check_pytorchs_own_samples_of_every_operator_give_natives_results() -> None:
    compared = dict.fromkeys(OPERATORS, 0)
    for name, dtype in itertools.product(OPERATORS, (torch.float32, torch.float64)):
        info = samples_of(name)
        for sample in info.sample_inputs("cpu", dtype, requires_grad=True) if info else ():
            results = []
            for context in (nullcontext(), everywhere()):
                # Running statistics are written to: each run gets its own.
                moved = copy.deepcopy(
                    [value.detach() if isinstance(value, torch.Tensor) else value for value in sample.args]
                )
                with context:
                    results.append(outcome(functools.partial(info.op, **sample.kwargs), (sample.input, *moved), {}))
            for a, e in zip(results[1], results[0], strict=True):
                found = unlike(name, a, e) if isinstance(a, torch.Tensor) else []
                assert not found, (name, sample.input.shape, sample.kwargs, found)
            compared[name] += 1
    assert all(compared[name] >= 8 for name in OPERATORS if samples_of(name)), compared
    assert sum(bool(count) for count in compared.values()) >= 6, compared


def check_pytorchs_own_wrong_inputs_of_every_operator_are_refused_with_its_errors() -> None:
    refused = 0
    with everywhere():
        for info in filter(None, map(samples_of, OPERATORS)):
            for case in info.error_inputs("cpu") if info.error_inputs_func else ():
                sample = case.sample_input
                try:
                    info.op(sample.input, *sample.args, **sample.kwargs)
                except case.error_type as error:
                    assert re.search(case.error_regex, str(error)), (case.error_regex, error)  # noqa: PT017 - no pytest
                    refused += 1
                else:
                    raise AssertionError(f"{info.name} accepted {sample.input.shape} {sample.kwargs}")
    assert refused >= 3


def check_gradients_of_first_and_second_order_and_forward_mode_pass_gradcheck() -> None:
    for algorithm, (function, operands, options) in itertools.product(("planned", "unfold"), small_cases()):
        call = functools.partial(function, **options)
        about = (algorithm, function.__name__, options)
        with everywhere(algorithm):
            assert torch.autograd.gradcheck(call, operands, fast_mode=True, check_forward_ad=True), about
            assert torch.autograd.gradgradcheck(call, operands, fast_mode=True), about


def check_batch_norm_of_the_vendors_library_is_computed_by_pytorch_with_all_gradients() -> None:
    generator = torch.Generator().manual_seed(4)
    x, weight, bias, mean = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 4, 5), (4,), (4,), (4,))
    )
    with everywhere():
        for training in (True, False):
            for library in (torch.miopen_batch_norm, torch.cudnn_batch_norm):

                def normalize(*operands: torch.Tensor, library: Any = library, training: bool = training) -> Any:
                    return library(*operands, mean.clone(), mean.square() + 1, training, 0.1, 1e-5)[0]

                leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
                y = normalize(*leaves)
                moments = (mean.clone(), mean.square() + 1)
                assert not unlike("y", y, F.batch_norm(x, *moments, weight, bias, training, 0.1, 1e-5))
                assert torch.autograd.gradcheck(normalize, leaves), (library, training)
                if training:
                    assert torch.autograd.gradgradcheck(normalize, leaves), library


def check_convolutions_called_by_the_librarys_own_names_are_ours() -> None:
    x, weight, bias = torch.randn(2, 4, 9, 8), torch.randn(4, 4, 3, 3), torch.randn(4)
    pairs = ([1, 2], [2, 1], [1, 1])
    with everywhere():
        for library in (torch.miopen_convolution, torch.miopen_depthwise_convolution):
            got = library(x, weight, bias, *pairs, 1, False, False)
            assert not unlike("y", got, F.conv2d(x, weight, bias, pairs[1], pairs[0]))
        got = torch.miopen_convolution_transpose(x, weight, bias, pairs[0], [1, 0], *pairs[1:], 1, False, False)
        assert not unlike("y", got, F.conv_transpose2d(x, weight, bias, pairs[1], pairs[0], [1, 0]))


def check_unpatch_leaves_no_trace_and_scopes_take_turns() -> None:
    x, weight, line = torch.randn(2, 4, 9, 8), torch.randn(4, 4, 3, 3), torch.randn(3, 9, 2)
    module, native = nn.Conv2d(4, 4, 3), nn.Conv2d.__dict__["_conv_forward"]

    def both() -> set[str]:
        return library_kernels(lambda: (F.conv2d(x, weight), F.conv1d(x[0], line)))

    def modules() -> set[str]:
        return library_kernels(lambda: module(x))

    names, before = set(vars(F)) | set(vars(nn.Conv2d)), both()
    assert before
    for _ in range(2):
        patch("planned", "all")
        assert nn.Conv2d.__dict__["_conv_forward"] is native
        assert is_patched()
        assert not both() | modules()
        patch("unfold", "modules")
        assert both() == before
        assert not modules()
        patch("unfold", "all")
        assert not both() | modules()
        unpatch()
        unpatch()
        assert not is_patched()
        assert both() == before
        assert modules()
    assert set(vars(F)) | set(vars(nn.Conv2d)) == names
    assert nn.Conv2d.__dict__["_conv_forward"] is native
    try:
        torch.miopen_batch_norm(x, *[torch.ones(4)] * 4, True, 0.1, 1e-5)
    except (RuntimeError, NotImplementedError):
        pass
    else:
        raise AssertionError("the library's BatchNorm still has our kernel")


def check_an_unknown_scope_changes_nothing() -> None:
    for wrong in ("everything", "", None):
        try:
            patch("planned", wrong)
        except ValueError as error:
            assert "modules, all" in str(error)  # noqa: PT017 - no pytest in here
        else:
            raise AssertionError(wrong)
        assert not is_patched()


def check_patching_everywhere_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with everywhere():
            pass
