"""The algorithms against F.conv2d: results and gradients over every kind of argument, dtype and layout."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from comparing import differences, differing, each_algorithm, operands, outcome, unlike
from patching import Spy
from rocm_agent.conv2d import conv2d
from torch.nn.functional import conv2d as native

KERNELS = ((1, 1), (2, 2), (3, 3), (3, 5), (4, 1), (7, 7))
STRIDES = (1, 2, (2, 3))
PADDINGS = (0, 1, (2, 1), (3, 4), "same", "valid")
DILATIONS = (1, 2, (1, 3))
CHANNELS = ((3, 4, 1), (4, 6, 2), (5, 5, 5), (4, 8, 4))
"""In, out, groups: dense, grouped, depthwise, depthwise with a multiplier."""


@functools.cache
def sweep() -> tuple[tuple[tuple[Any, ...], dict[str, Any], Any], ...]:
    """Return every convolution that native accepts among the products of the tables above, with native's outcome."""
    return tuple(_sweep())


def _sweep() -> Iterator[tuple[tuple[Any, ...], dict[str, Any], Any]]:
    for kernel, stride, padding, dilation, (inputs, outputs, groups) in itertools.product(
        KERNELS, STRIDES, PADDINGS, DILATIONS, CHANNELS
    ):
        if padding == "same" and stride != 1:
            continue
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        made = operands((2, inputs, 9, 11), (outputs, inputs // groups, *kernel), bias=kernel != (2, 2))
        try:
            expected = outcome(native, made, options)
        except RuntimeError:
            continue
        yield made, options, expected


def assert_sweep_agrees(algorithm: str) -> None:
    """Assert that `algorithm` gives native's results and gradients over the whole sweep."""
    function = functools.partial(conv2d, algorithm=algorithm)
    cases, wrong = 0, []
    for made, options, expected in sweep():
        cases += 1
        found = differing(outcome(function, made, options), expected)
        wrong += [f"{tuple(made[1].shape)} {options}: {found}"] if found else []
    assert cases > 500, cases
    assert not wrong, f"{len(wrong)} of {cases}:\n" + "\n".join(wrong[:20])


def check_planned_gives_natives_results_and_gradients_over_the_sweep() -> None:
    assert_sweep_agrees("planned")


def check_unfold_gives_natives_results_and_gradients_over_the_sweep() -> None:
    assert_sweep_agrees("unfold")


def check_unfold_reference_gives_natives_results_and_gradients_over_the_sweep() -> None:
    assert_sweep_agrees("unfold_reference")


def check_every_dtype_that_native_takes_gives_natives_results() -> None:
    taken = []
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128):
        for groups in (1, 2):
            made = operands((2, 4, 8, 7), (6, 4 // groups, 3, 3), dtype)
            options = {"padding": 1, "groups": groups}
            try:
                outcome(native, made, options)
            except RuntimeError:
                continue
            taken.append(dtype)
            for function in each_algorithm():
                assert not differences(function, native, made, options), (dtype, groups)
    assert {torch.float64, torch.bfloat16, torch.complex64} <= set(taken)


def check_a_dtype_that_the_device_cannot_multiply_is_refused_as_native_refuses_it() -> None:
    for dtype in (torch.int64, torch.bool):
        x, weight = torch.ones(1, 2, 4, 4, dtype=dtype), torch.ones(2, 2, 3, 3, dtype=dtype)
        for function in each_algorithm():
            try:
                function(x, weight)
            except RuntimeError as error:
                assert "not implemented for" in str(error)  # noqa: PT017 - no pytest in here
            else:
                raise AssertionError(dtype)


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return tensors of other memory layouts than NCHW."""
    return {
        "channels_last": x.detach().contiguous(memory_format=torch.channels_last).requires_grad_(),
        "transposed": x.detach().transpose(2, 3).requires_grad_(),
        "sliced": torch.cat([x.detach()] * 2, dim=3)[:, :, ::2, 1::2].requires_grad_(),
        "expanded": x.detach()[:1, :, :, :1].expand(2, -1, -1, 6).requires_grad_(),
    }


def check_inputs_and_weights_of_any_layout_give_natives_results() -> None:
    x, weight, bias = operands((2, 4, 6, 6), (8, 2, 3, 3))
    for (name, odd), function in itertools.product(layouts(x).items(), each_algorithm()):
        assert not differences(function, native, (odd, weight, bias), {"groups": 2, "padding": 1}), name
    for (name, odd), function in itertools.product(layouts(weight).items(), each_algorithm()):
        if name in ("channels_last", "transposed"):
            assert not differences(function, native, (x, odd, bias), {"groups": 2, "padding": 1}), name


def check_gradients_that_are_expanded_or_strided_are_taken() -> None:
    made = operands((2, 4, 6, 6), (8, 2, 3, 3))
    shape = (2, 8, 4, 4)
    seeds = {
        "sum": torch.ones(()).expand(shape),
        "channels_last": torch.randn(shape).contiguous(memory_format=torch.channels_last),
        "sliced": torch.randn(2, 8, 8, 8)[:, :, ::2, ::2],
    }
    for (name, seed), function in itertools.product(seeds.items(), each_algorithm()):
        expected = outcome(native, made, {"groups": 2}, seed)
        for which, (a, e) in enumerate(zip(outcome(function, made, {"groups": 2}, seed), expected, strict=True)):
            assert not unlike(str(which), a, e), name


def check_unbatched_input_gives_unbatched_output() -> None:
    for function, padding, kernel in itertools.product(each_algorithm(), (0, 1, "same"), ((3, 3), (2, 4))):
        made = operands((4, 7, 6), (6, 2, *kernel))
        assert not differences(function, native, made, {"padding": padding, "groups": 2}), (padding, kernel)


def check_an_empty_batch_gives_an_empty_output_and_zero_gradients() -> None:
    for function, groups in itertools.product(each_algorithm(), (1, 2)):
        made = operands((0, 4, 7, 6), (6, 4 // groups, 3, 3))
        assert not differences(function, native, made, {"groups": groups, "padding": 1}), groups
        assert float(outcome(function, made, {"groups": groups})[2].abs().sum()) == 0.0


def check_arguments_may_be_numbers_or_sequences_of_one_or_two() -> None:
    made = operands((1, 2, 9, 8), (3, 2, 3, 2))
    for function, stride, padding, dilation in itertools.product(
        each_algorithm(), (2, (2,), [2, 1], torch.Size([1, 2])), (1, [1], (0, 1)), (2, (1,), [1, 2])
    ):
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        assert not differences(function, native, made, options), options


def check_only_the_gradients_that_are_wanted_are_made() -> None:
    for function, wanted in itertools.product(each_algorithm(), itertools.product((False, True), repeat=3)):
        made = operands((2, 4, 6, 6), (4, 2, 3, 3))
        for tensor, want in zip(made, wanted, strict=True):
            tensor.requires_grad_(want)
        assert not differences(function, native, made, {"groups": 2}), wanted


def check_no_grad_and_inference_mode_give_plain_results() -> None:
    made = operands((2, 4, 6, 6), (4, 2, 3, 3))
    for function, mode in itertools.product(each_algorithm(), (torch.no_grad, torch.inference_mode)):
        with mode():
            y = function(*made, groups=2)
            assert not y.requires_grad
            assert not unlike("y", y, native(*made, groups=2))


def check_gradients_of_first_and_second_order_pass_gradcheck() -> None:
    cases: tuple[dict[str, Any], ...] = (
        {"groups": 1, "padding": 1},
        {"groups": 2, "stride": 2},
        {"groups": 2, "padding": "same"},
    )
    for function, options in itertools.product(each_algorithm(), cases):
        made = operands((2, 2, 4, 3), (2, 2 // options["groups"], 2, 3), torch.float64)
        call = functools.partial(function, **options)
        assert torch.autograd.gradcheck(call, made), options
        assert torch.autograd.gradgradcheck(call, made), options


def check_autocast_gives_natives_dtypes_and_results() -> None:
    made = operands((2, 4, 6, 6), (4, 2, 3, 3))
    double = operands((2, 4, 6, 6), (4, 2, 3, 3), torch.float64)
    for function, padding in itertools.product(each_algorithm(), (1, "same")):
        options = {"groups": 2, "padding": padding}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert function(*made, **options).dtype is torch.bfloat16
            assert not differences(function, native, made, options, bound=1.6e-2)
            assert not differences(function, native, double, options)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            assert not differences(function, native, made, options)


def check_autocast_takes_mixed_inputs_as_native_does() -> None:
    x, weight, bias = operands((2, 4, 6, 6), (4, 4, 3, 3))
    mixed = (x.detach().bfloat16().requires_grad_(), weight, bias)
    for function in each_algorithm():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not differences(function, native, mixed, {}, bound=1.6e-2)


def nodes(function: Any) -> set[str]:
    """Return the names of all nodes of the autograd graph that ends in `function`."""
    names, open_ends = set(), [function]
    while open_ends:
        node = open_ends.pop()
        names.add(node.name())
        open_ends += [following for following, _ in node.next_functions if following is not None]
    return names


def check_the_bias_makes_autograd_copy_no_gradient() -> None:
    for function, groups in itertools.product(each_algorithm(), (1, 2)):
        y = function(*operands((2, 4, 6, 6), (4, 4 // groups, 3, 3)), groups=groups)
        assert any("Im2Col" in name or "_Convolution" in name for name in nodes(y.grad_fn))
        assert "CopySlices" not in nodes(y.grad_fn), groups


def check_no_convolution_kernel_runs_forward_or_backward() -> None:
    made = operands((2, 4, 6, 6), (4, 2, 3, 3))
    with Spy() as seen:
        outcome(native, made, {"groups": 2})
    assert any("conv" in name for name in seen.names), seen.names
    for function in each_algorithm():
        with Spy() as seen:
            outcome(function, made, {"groups": 2})
        assert any("mm" in name for name in seen.names), seen.names
        assert not [name for name in seen.names if "conv" in name]
