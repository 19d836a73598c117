"""The planned convolution: every family of algorithms against native, what it holds, and where it steps aside."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from comparing import differences, operands, outcome, unlike
from patching import Spy
from rocm_agent.conv2d import columns, conv2d, depthwise, mec, planner, plans, pointwise, shifted, subpixel, winograd
from rocm_agent.conv2d.geometry import Geometry, geometry
from rocm_agent.conv2d.trial import Tried
from torch.nn.functional import conv2d as native

planned = functools.partial(conv2d, algorithm="planned")

Case = tuple[Geometry, tuple[torch.Tensor, ...], dict[str, Any]]


def cases(kernels: Any, strides: Any, paddings: Any, dilations: Any, groups: int = 1) -> Iterator[Case]:
    """Yield the geometry, the operands in double precision and the options of what native accepts of the products."""
    for kernel, stride, padding, dilation, batch in itertools.product(kernels, strides, paddings, dilations, (1, 3)):
        inputs, outputs = (2, 5) if groups == 1 else (groups, 2 * groups)
        made = operands((batch, inputs, 9, 13), (outputs, inputs // groups, *kernel), torch.float64)
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        try:
            native(*made, **options)
        except RuntimeError:
            continue
        sizes = tuple(made[0].shape), tuple(made[1].shape), tuple(made[2].shape)
        yield geometry(*sizes, stride, padding, dilation, groups), made, options


def assert_agrees(family: Any, case: Case, bound: float = 1e-13) -> None:
    """Assert that a family's passes, as far as it has them, give native's output and gradients."""
    shape, (x, weight, bias), options = case
    y, dx, dw, _ = outcome(native, (x, weight, bias), options)
    generator = torch.Generator().manual_seed(7)
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    found = []
    with torch.no_grad():
        if hasattr(family, "forward"):
            found += unlike("y", family.forward(x, weight, bias, shape), y, bound)
            found += unlike("dw", family.weight_gradient(dy, x, shape), dw, bound)
        if family is not mec or shape.stride == (1, 1):
            found += unlike("dx", family.input_gradient(dy, weight, tuple(x.shape[2:]), shape), dx, bound)
        if family is mec and shape.stride == (1, 1):
            both = mec.both_gradients(dy, x, weight, shape)
            found += unlike("both dx", both[0], dx, bound) + unlike("both dw", both[1], dw, bound)
    assert not found, (family.__name__, shape, found)


def assert_all(family: Any, found: Iterator[Case], fits: Callable[[Geometry], bool], bound: float = 1e-13) -> None:
    """Assert agreement over the cases that the family takes, and that there are some."""
    taken = [case for case in found if fits(case[0])]
    assert len(taken) >= 10
    for case in taken:
        assert_agrees(family, case, bound)


KERNELS = ((1, 1), (2, 2), (3, 3), (3, 5), (4, 1))
STRIDES = ((1, 1), (2, 2), (3, 1), (1, 2))
PADDINGS = ((0, 0), (1, 1), (2, 1), (0, 4))


def lowers(shape: Geometry) -> bool:
    """Whether MEC takes it: no dilated rows, no output of padding alone."""
    reach = shape.dilation[1] * (shape.kernel[1] - 1)
    return shape.dilation[0] == 1 and shape.padding[0] < shape.kernel[0] and shape.padding[1] <= reach


def check_columns_agree_with_native_on_any_geometry() -> None:
    assert_all(columns, cases(KERNELS, STRIDES, PADDINGS, ((1, 1), (2, 3))), lambda _: True)
    assert_all(columns, cases(((3, 2),), STRIDES, PADDINGS, ((1, 1), (2, 1)), groups=3), lambda _: True)


def check_mec_agrees_with_native_in_both_ways_of_lowering() -> None:
    assert_all(mec, cases(KERNELS, STRIDES, PADDINGS, ((1, 1), (1, 2))), lowers)
    # Enough elements that each tap is copied by itself.
    for stride, padding in itertools.product(((1, 1), (2, 2), (2, 1)), ((1, 1), (0, 2))):
        made = operands((1, 8, 90, 130), (3, 8, 3, 3), torch.float64)
        shape = geometry((1, 8, 90, 130), (3, 8, 3, 3), (3,), stride, padding, (1, 1), 1)
        assert mec.FEW_A_PROCESSOR < 8 * 90 * 3 * 65
        assert_agrees(mec, (shape, made, {"stride": stride, "padding": padding}))


def check_shifted_products_agree_with_native() -> None:
    taken = [case for case in cases(KERNELS, ((1, 1),), PADDINGS, ((1, 1), (1, 2))) if lowers(case[0])]
    assert len(taken) >= 10
    for shape, (x, weight, bias), options in taken:
        with torch.no_grad():
            for b in (bias, None):
                expected = native(x, weight, b, **options)
                assert not unlike("y", shifted.forward(x, weight, b, shape), expected, 1e-13), shape


def check_the_subpixel_gradient_is_natives_for_every_stride() -> None:
    assert_all(subpixel, cases(KERNELS, STRIDES, PADDINGS, ((1, 1),)), lowers)


def check_pointwise_products_agree_with_native_with_and_without_stride() -> None:
    for size in ((9, 13), (5, 4)):
        for stride in STRIDES:
            made = operands((3, 4, *size), (6, 4, 1, 1), torch.float64)
            shape = geometry((3, 4, *size), (6, 4, 1, 1), (6,), stride, (0, 0), (1, 1), 1)
            assert_agrees(pointwise, (shape, made, {"stride": stride}))


def check_depthwise_tiles_agree_with_native_on_any_geometry() -> None:
    found = cases(((1, 1), (3, 3), (2, 5)), STRIDES, PADDINGS, ((1, 1), (2, 1)), groups=3)
    assert_all(depthwise, found, lambda _: True)


def check_winograd_agrees_with_native_and_stays_within_its_error_in_float32() -> None:
    found = cases(((3, 3),), ((1, 1),), ((0, 0), (1, 1), (2, 1), (1, 0), (2, 2)), ((1, 1),))
    assert_all(winograd, found, lambda _: True, bound=1e-12)
    x, weight, bias = operands((1, 128, 20, 22), (128, 128, 3, 3))
    shape = geometry(tuple(x.shape), tuple(weight.shape), (128,), (1, 1), (1, 1), (1, 1), 1)
    with torch.no_grad():
        expected = native(x.double(), weight.double(), bias.double(), padding=1)
        assert not unlike("y", winograd.forward(x, weight, bias, shape).double(), expected, bound=1e-5)


LARGE: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any], float]] = {
    "a first layer": (mec, (2, 3, 64, 62), (16, 3, 3, 3), {"stride": 2, "padding": 1}, 2e-6),
    "few channels": (mec, (2, 16, 31, 33), (24, 16, 3, 3), {"padding": 1}, 2e-6),
    "a wide kernel": (mec, (2, 8, 31, 33), (8, 8, 5, 7), {"padding": (2, 3)}, 2e-6),
    "many channels": (winograd, (1, 96, 17, 18), (128, 96, 3, 3), {"padding": 1}, 1e-5),
    "1x1": (pointwise, (2, 32, 17, 18), (48, 32, 1, 1), {}, 2e-6),
    "1x1 on small maps": (pointwise, (4, 32, 5, 4), (48, 32, 1, 1), {"stride": 2}, 2e-6),
    "depthwise": (depthwise, (2, 24, 19, 18), (24, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 24}, 2e-6),
    "grouped": (columns, (2, 24, 19, 18), (48, 6, 3, 3), {"padding": 1, "groups": 4}, 2e-6),
    "dilated": (columns, (2, 24, 29, 28), (16, 24, 3, 3), {"padding": 2, "dilation": 2}, 2e-6),
}


def plan_of(x: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]) -> tuple[plans.Plan, Geometry]:
    """Return the plan in float32 on the CPU, and the geometry."""
    given = {"stride": 1, "padding": 0, "dilation": 1, **options}
    pairs = [value if isinstance(value, tuple) else (value, value) for name, value in given.items() if name != "groups"]
    shape = geometry(x, weight, (weight[0],), *pairs, options.get("groups", 1))
    return planner.plan(x, weight, torch.float32, torch.device("cpu"), shape), shape


def check_each_kind_of_layer_gets_its_family_and_natives_results() -> None:
    for name, (family, x, weight, options, bound) in LARGE.items():
        assert plan_of(x, weight, options)[0].forward is family.forward, name
        found = differences(planned, native, operands(x, weight), options, bound=bound)
        assert not found, (name, found)


def check_a_plan_in_parts_of_the_batch_gives_the_whole_plans_results() -> None:
    for name, (_, size, weight, options, bound) in LARGE.items():
        x = (5, *size[1:])
        plan, shape = plan_of(x, weight, options)
        parts = plans.in_parts(plan, 2)
        a, w, b = operands(x, weight)
        with torch.no_grad():
            y = plan.forward(a, w, b, shape)
            found = unlike("y", parts.forward(a, w, b, shape), y, bound)
            dy, plane = torch.randn_like(y), a.shape[2:]
            dx = plan.input_gradient(dy, w, plane, shape)
            found += unlike("dx", parts.input_gradient(dy, w, plane, shape), dx, bound)
            found += unlike("dw", parts.weight_gradient(dy, a, shape), plan.weight_gradient(dy, a, shape), bound)
            if plan.both is not None:
                pairs = zip(parts.both(dy, a, w, shape), plan.both(dy, a, w, shape), strict=True)
                found += [text for got, whole in pairs for text in unlike("both", got, whole, bound)]
        assert not found, (name, found)


def check_the_graph_holds_the_input_and_not_its_columns() -> None:
    for name, (_, x, weight, options, _) in LARGE.items():
        made, held = operands(x, weight), []

        def keep(tensor: torch.Tensor, held: list[torch.Tensor] = held) -> torch.Tensor:
            held.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            planned(*made, **options)
        known = {tensor.data_ptr() for tensor in made}
        assert held, name
        assert {tensor.data_ptr() for tensor in held} <= known, name


def check_outputs_can_be_flattened_by_view_as_natives_can() -> None:
    for _, (_, x, weight, options, _) in LARGE.items():
        made = operands((4, *x[1:]), weight)
        y = planned(*made, **options)
        assert y.stride() == native(*made, **options).stride()
        assert y.view(4, -1).shape[1] == y[0].numel()


def check_a_changed_input_is_noticed_before_a_wrong_gradient_is_made() -> None:
    x, weight, bias = operands((2, 4, 6, 6), (4, 4, 3, 3))
    x = x.detach().clone()
    y = planned(x, weight, bias)
    x.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017 - no pytest in here
    else:
        raise AssertionError


def check_backward_inside_autocast_keeps_the_gradients_dtype_and_precision() -> None:
    for name in ("few channels", "many channels", "1x1", "depthwise"):
        _, x, weight, options, bound = LARGE[name]
        made = operands(x, weight)
        y = planned(*made, **options)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).float()
        expected = outcome(native, made, options, dy)[1:]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y.backward(dy)
        for which, (tensor, e) in enumerate(zip(made, expected, strict=True)):
            assert not unlike(str(which), tensor.grad, e, bound), name


def check_higher_gradients_of_large_layers_are_natives() -> None:
    for name in ("a first layer", "few channels", "1x1", "depthwise", "grouped"):
        _, x, weight, options, _ = LARGE[name]
        second = []
        for function in (planned, native):
            a, w, _ = operands(x, weight, torch.float64)
            grads = torch.autograd.grad(function(a, w, None, **options).square().sum(), (a, w), create_graph=True)
            second.append(torch.autograd.grad(sum(g.square().sum() for g in grads), (a, w)))
        for got, expected in zip(*second, strict=True):
            assert not unlike(name, got, expected, 1e-12), name


def check_tensors_without_data_give_their_output_shape() -> None:
    y = planned(torch.ones(2, 3, 8, 8, device="meta"), torch.ones(4, 3, 3, 3, device="meta"), padding=1)
    assert y.shape == (2, 4, 8, 8)
    assert y.is_meta


def check_planned_calls_no_convolution_kernel() -> None:
    for name, (_, x, weight, options, _) in LARGE.items():
        with Spy() as seen:
            outcome(planned, operands(x, weight), options)
        assert any("bmm" in kernel or "mm." in kernel for kernel in seen.names), name
        assert not [kernel for kernel in seen.names if "conv" in kernel], name


def doubled(x: torch.Tensor) -> torch.Tensor:
    """The reference of the trials below."""
    return 2 * x


def check_a_pass_that_agrees_with_the_reference_is_trusted_and_one_that_does_not_is_replaced() -> None:
    x = torch.ones(4)
    calls = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return 2 * x

    agreeing = Tried(counted, doubled)
    assert all(torch.equal(agreeing(x), 2 * x) for _ in range(3))
    assert len(calls) == 4, "once on trial"
    for wrong in (lambda x: 3 * x, lambda x: x * float("nan"), lambda _: torch.mm(torch.ones(2), torch.ones(2))):
        replaced = Tried(wrong, doubled)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert all(torch.equal(replaced(x), 2 * x) for _ in range(3))
        assert len(told) == 1


def check_an_overflow_of_the_training_condemns_no_pass() -> None:
    trial = Tried(lambda x: 2 * x + 0, doubled)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not torch.isfinite(trial(torch.full((4,), float("inf")))).any()
        assert torch.equal(trial(torch.ones(4)), torch.full((4,), 2.0))
    assert not told


def check_gradients_too_small_for_half_precision_condemn_no_pass() -> None:
    trial = Tried(lambda x: x * 0.3 + x * 0.3, lambda x: x * 0.6)
    tiny = torch.full((4,), 6e-8, dtype=torch.float16)
    assert not torch.equal(tiny * 0.3 + tiny * 0.3, tiny * 0.6), "underflow tells them apart"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trial(tiny)


def check_shortage_of_memory_condemns_no_pass() -> None:
    answers = [RuntimeError("CUDA out of memory"), *[torch.full((4,), 2.0)] * 3]

    def scarce(_: torch.Tensor) -> torch.Tensor:
        answer = answers.pop(0)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    trial = Tried(scarce, lambda _: torch.full((4,), 2.0))
    assert all(torch.equal(trial(torch.ones(4)), torch.full((4,), 2.0)) for _ in range(2))
    assert not answers
