"""The planned convolution: every family of algorithms against native, what it holds, and where it steps aside."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from comparing import differences, operands, outcome, unlike
from everything import everywhere
from patching import Spy
from rocm_agent.conv2d import (
    batch_parts,
    conv2d,
    depthwise_aten,
    direct_strips,
    layout_copy,
    limits,
    mec,
    planner,
    shifted,
    winograd,
    winograd_strips,
)
from rocm_agent.conv2d.candidates import PASSES, candidates
from rocm_agent.conv2d.case import Case as Planned
from rocm_agent.conv2d.geometry import Geometry, geometry
from rocm_agent.conv2d.heuristic import preferred
from rocm_agent.conv2d.verify import agrees
from torch.nn.functional import conv2d as native

planned = functools.partial(conv2d, algorithm="planned")

Case = tuple[Geometry, tuple[torch.Tensor, ...], dict[str, Any]]


def cases(kernels: Any, strides: Any, paddings: Any, dilations: Any, groups: int = 1) -> Iterator[Case]:
    """Yield the geometry, the operands in double precision and the options of what native accepts of the products."""
    for kernel, stride, padding, dilation, batch in itertools.product(kernels, strides, paddings, dilations, (1, 3)):
        inputs, outputs = (2, 5) if groups == 1 else (groups, groups if batch == 3 else 2 * groups)
        made = operands((batch, inputs, 9, 13), (outputs, inputs // groups, *kernel), torch.float64)
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        try:
            native(*made, **options)
        except RuntimeError:
            continue
        sizes = tuple(made[0].shape), tuple(made[1].shape), tuple(made[2].shape)
        yield geometry(*sizes, stride, padding, dilation, groups), made, options


def passes(made: tuple[torch.Tensor, ...], options: dict[str, Any], shape: Geometry) -> dict[str, Any]:
    """Return the operands of each pass and native's results, by the pass' name."""
    x, weight, bias = made
    y, dx, dw, _ = outcome(native, made, options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(y)
    size = tuple(x.shape[2:])
    operands_of = ((x, weight, bias, shape), (dy, weight, size, shape), (dy, x, shape), (dy, x, weight, shape))
    return dict(zip(PASSES, zip(operands_of, ((y,), (dx,), (dw,), (dx, dw)), strict=True), strict=True))


def differing(case: Case, bound: float, seen: set[tuple[str, str]]) -> list[str]:
    """Return where a candidate of any pass differs from native, and note the candidates in `seen`."""
    shape, made, options = case
    planned_case = Planned(
        tuple(made[0].shape), tuple(made[1].shape), made[0].dtype, made[0].device, shape, KEPT_NOWHERE
    )
    found, todo = [], passes(made, options, shape)
    with torch.no_grad():
        for kind, (given, expected) in todo.items():
            for name, candidate in planned_case.candidates(kind).items():
                seen.add((kind, name))
                results = planned_case.function(kind, candidate)(*given)
                results = results if isinstance(results, tuple) else (results,)
                for result, e in zip(results, expected, strict=True):
                    assert result.is_contiguous(), (kind, name, shape)
                    found += unlike(f"{kind} {name} {shape}", result, e.detach(), bound)
    return found


KERNELS = ((1, 1), (2, 2), (3, 3), (3, 5), (4, 1))
STRIDES = ((1, 1), (2, 2), (1, 2))
PADDINGS = ((0, 0), (1, 1), (2, 1), (0, 4))
KEPT_NOWHERE = limits.Limits(tune_s=0.0)


def check_every_candidate_for_every_pass_agrees_with_native_on_any_geometry() -> None:
    seen: set[tuple[str, str]] = set()
    for groups in (1, 3):
        for case in cases(KERNELS, STRIDES, PADDINGS, ((1, 1), (2, 1), (1, 2)), groups):
            found = differing(case, 1e-12, seen)
            assert not found, found
    forwards = {name for kind, name in seen if kind == "forward" and "/" not in name}
    assert forwards == {
        "columns", "im2col", "mec", "direct", "direct-strips", "shifted", "winograd", "pointwise", "pointwise-turned",
        "pointwise-whole", "tiles", "taps", "dense",
    }  # fmt: skip
    assert {name for kind, name in seen if kind == "both"} >= {"im2col", "mec", "direct", "tiles"}


def check_the_ways_of_copying_that_large_sizes_take_agree_with_native_too() -> None:
    before = mec.FEW_A_PROCESSOR, shifted.SMALL_A_PROCESSOR, layout_copy.WORTH
    mec.FEW_A_PROCESSOR = shifted.SMALL_A_PROCESSOR = layout_copy.WORTH = 0
    try:
        for case in cases(((3, 3), (2, 5)), STRIDES, PADDINGS, ((1, 1), (1, 2))):
            found = differing(case, 1e-12, set())
            assert not found, found
    finally:
        mec.FEW_A_PROCESSOR, shifted.SMALL_A_PROCESSOR, layout_copy.WORTH = before


def check_direct_strips_of_one_row_and_of_a_few_agree_with_native() -> None:
    before = direct_strips.STRIP
    try:
        for direct_strips.STRIP in (0, 400):
            for shape, made, options in cases(((3, 3), (2, 5)), STRIDES, PADDINGS, ((1, 1), (1, 2))):
                case = Planned(tuple(made[0].shape), tuple(made[1].shape), made[0].dtype, CPU, shape, KEPT_NOWHERE)
                for kind, (given, expected) in passes(made, options, shape).items():
                    if "direct-strips" in case.candidates(kind):
                        with torch.no_grad():
                            found = case.candidates(kind)["direct-strips"].run(*given)
                        assert not unlike(kind, found, expected[0], 1e-12), (case.exact, kind)
    finally:
        direct_strips.STRIP = before


def check_winograd_stays_within_its_error_in_float32() -> None:
    x, weight, bias = operands((1, 128, 20, 22), (128, 128, 3, 3))
    shape = geometry(tuple(x.shape), tuple(weight.shape), (128,), (1, 1), (1, 1), (1, 1), 1)
    with torch.no_grad():
        expected = native(x.double(), weight.double(), bias.double(), padding=1)
        for family in (winograd, winograd_strips):
            assert not unlike("y", family.forward(x, weight, bias, shape).double(), expected, bound=1e-5)


CPU = torch.device("cpu")
STRIPPED = (
    ((3, 4, 30, 41), (5, 4, 3, 3), {"padding": 1}),
    ((7, 3, 9, 8), (2, 3, 3, 3), {}),
    ((2, 2, 16, 24), (6, 2, 3, 3), {"padding": (2, 1)}),
)


def check_winograds_passes_agree_whatever_strips_a_map_or_a_batch_is_divided_into() -> None:
    before = winograd_strips.STRIP, winograd_strips.LEAST
    try:
        for most in (1, 7, 20, 1 << 20):
            winograd_strips.STRIP, winograd_strips.LEAST = 1, most
            for x_size, w_size, options in STRIPPED:
                case = case_of(x_size, w_size, options)
                for layout in (torch.contiguous_format, torch.channels_last):
                    made = operands(x_size, w_size, torch.float64)
                    x, weight = (tensor.detach().to(memory_format=layout).requires_grad_() for tensor in made[:2])
                    given = passes((x, weight, made[2]), options, case.shape)
                    with torch.no_grad():
                        for kind in ("forward", "input", "weight"):
                            operands_, expected = given[kind]
                            found = case.candidates(kind)["winograd"].run(*operands_)
                            assert not unlike(kind, found, expected[0], 1e-12), (most, x_size, kind, layout)
    finally:
        winograd_strips.STRIP, winograd_strips.LEAST = before


def check_strips_on_a_cpu_take_the_same_workspace_for_any_batch_of_large_maps() -> None:
    few, many = (case_of((batch, 64, 80, 80), (64, 64, 3, 3), {"padding": 1}) for batch in (1, 64))
    for kind in ("forward", "input", "weight"):
        for name in ("winograd", "direct-strips"):
            need = few.candidates(kind)[name].need
            assert need == many.candidates(kind)[name].need
            assert need.a_sample == 0, (name, need)
            assert need.fixed < 1 << 22, (name, need)


LARGE: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any], float]] = {
    "a first layer": ("mec", (2, 3, 64, 62), (16, 3, 3, 3), {"stride": 2, "padding": 1}, 2e-6),
    "few channels": ("mec", (2, 16, 31, 33), (24, 16, 3, 3), {"padding": 1}, 2e-6),
    "a wide kernel": ("mec", (2, 8, 31, 33), (8, 8, 5, 7), {"padding": (2, 3)}, 2e-6),
    "wide rows": ("direct-strips", (2, 4, 8, 140), (4, 4, 3, 3), {"padding": 1}, 2e-6),
    "many channels": ("winograd", (1, 96, 17, 18), (128, 96, 3, 3), {"padding": 1}, 1e-5),
    "1x1": ("pointwise", (2, 32, 17, 18), (48, 32, 1, 1), {}, 2e-6),
    "1x1 on small maps": ("pointwise-whole", (4, 32, 5, 4), (48, 32, 1, 1), {"stride": 2}, 2e-6),
    "depthwise": ("tiles", (2, 24, 19, 18), (24, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 24}, 2e-6),
    "grouped": ("columns", (2, 24, 19, 18), (48, 6, 3, 3), {"padding": 1, "groups": 4}, 2e-6),
    "dilated": ("columns", (2, 24, 29, 28), (16, 24, 3, 3), {"padding": 2, "dilation": 2}, 2e-6),
}


def case_of(
    x: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any], allowed: limits.Limits = KEPT_NOWHERE
) -> Planned:
    """Return the convolution in float32 on the CPU, as the planner sees it."""
    given = {"stride": 1, "padding": 0, "dilation": 1, **options}
    pairs = [value if isinstance(value, tuple) else (value, value) for name, value in given.items() if name != "groups"]
    shape = geometry(x, weight, (weight[0],), *pairs, options.get("groups", 1))
    return Planned(x, weight, torch.float32, torch.device("cpu"), shape, allowed)


def check_each_kind_of_layer_gets_its_family_by_rule_and_natives_results() -> None:
    planner.use(KEPT_NOWHERE)
    for name, (family, x, weight, options, bound) in LARGE.items():
        assert preferred(case_of(x, weight, options), "forward")[0] == family, name
        found = differences(planned, native, operands(x, weight), options, bound=bound)
        assert not found, (name, found)


def check_every_pass_in_parts_of_the_batch_gives_the_whole_passs_results() -> None:
    for name, (_, size, weight, options, _) in LARGE.items():
        case = case_of((5, *size[1:]), weight, options)
        given = passes(operands(case.x, weight), options, case.shape)
        with torch.no_grad():
            for kind, (made, expected) in given.items():
                for which, candidate in case.candidates(kind).items():
                    results = batch_parts.in_parts(kind, candidate.run, 2)(*made)
                    results = results if isinstance(results, tuple) else (results,)
                    found = [text for r, e in zip(results, expected, strict=True) for text in unlike(which, r, e, 1e-5)]
                    assert not found, (name, kind, found)


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


def compared(run: Callable[..., torch.Tensor], x: torch.Tensor) -> str:
    """Return what a trial of `run` says whose reference doubles."""
    return agrees(run, lambda x: 2 * x, (x,), 1)


def check_a_trial_names_what_is_wrong_and_finds_nothing_where_nothing_is() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    assert compared(lambda x: x + x, x) == ""
    assert "relative distances" in compared(lambda x: 2.1 * x, x)
    assert "relative distances" in compared(lambda x: x * float("nan"), x)
    assert "other shapes" in compared(lambda x: (2 * x)[1:], x)


def check_one_wrong_row_of_many_is_noticed() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        y = 2 * x
        y[..., 0] = 0
        return y

    assert "relative" in compared(wrong, torch.ones(8, 4, 640))


def check_operands_that_report_nothing_neither_condemn_nor_acquit() -> None:
    for useless in (float("inf"), float("nan"), 0.0):
        x = torch.full((8, 4), useless)
        assert compared(lambda x: x + x, x) == ""
        assert compared(lambda x: 3 * x, x)


def check_gradients_too_small_for_half_precision_condemn_no_pass() -> None:
    tiny = torch.full((8,), 6e-8, dtype=torch.float16)
    assert not torch.equal(tiny * 0.3 + tiny * 0.3, tiny * 0.6), "underflow tells them apart"
    assert agrees(lambda x: x * 0.3 + x * 0.3, lambda x: x * 0.6, (tiny,), 1) == ""


def check_rounding_of_a_sum_that_cancels_condemns_no_pass() -> None:
    generator = torch.Generator().manual_seed(3)
    x, dy = (torch.randn(8, 5000, generator=generator, dtype=torch.float64) for _ in range(2))
    dy -= (dy * x).sum(1, keepdim=True) / x.square().sum(1, keepdim=True) * x  # as a normalization makes its gradients
    given = (dy.float(), x.float())

    def reference(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (dy * x).sum(1)

    def rounded(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return reference(dy, x) + 1e-7 * (dy * x).abs().sum(1)

    def wrong(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return reference(dy, x.roll(1, 1))

    gap = rounded(*given) - reference(*given)
    assert float(gap.norm()) > 10 * float(reference(*given).norm()), "rounding tells them apart"
    assert agrees(rounded, reference, given, 2) == ""
    assert "relative distances" in agrees(wrong, reference, given, 2)


def check_gradients_by_pytorchs_own_depthwise_kernels_run_with_the_library_off() -> None:
    switch: list[bool] = []

    class Watching(Spy):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            switch.append(torch.backends.cudnn.enabled)
            return super().__torch_dispatch__(func, types, args, kwargs)

    for outputs, options in ((3, {"padding": (1, 1)}), (6, {"stride": (2, 1), "padding": (0, 1)})):
        made = operands((2, 3, 9, 8), (outputs, 1, 3, 3), torch.float64)
        given = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **options, "groups": 3}
        shape = geometry(tuple(made[0].shape), tuple(made[1].shape), None, **given)
        both, (dx, dw) = passes(made, given, shape)["both"]
        with torch.no_grad():
            with Watching() as spy:
                found = depthwise_aten.both_gradients(*both)
            found = (*found, depthwise_aten.weight_gradient(both[0], both[1], shape))
        assert "aten.convolution_backward.default" in spy.names
        assert not any(unlike("gradient", a, e.detach(), 1e-12) for a, e in zip(found, (dx, dw, dw), strict=True))
    assert not any(switch)
    assert torch.backends.cudnn.enabled


def check_a_gpu_is_offered_pytorchs_own_depthwise_kernels_and_no_backward_that_is_replaced() -> None:
    shape = geometry((2, 8, 9, 9), (8, 1, 3, 3), None, (1, 1), (1, 1), (1, 1), 8)
    at_stride_two = geometry((2, 8, 9, 9), (8, 1, 3, 3), None, (2, 2), (1, 1), (1, 1), 8)

    def offered(found: Geometry, device: str, x: tuple[int, ...] = (2, 8, 9, 9)) -> set[str]:
        sizes = x, (8, 1, 3, 3), torch.float64, torch.device(device), found
        return {kind for kind in PASSES if "aten" in candidates(kind, *sizes)}

    assert not offered(shape, "cpu"), "which has no such kernels"
    assert offered(shape, "cuda") == set(PASSES)
    assert offered(at_stride_two, "cuda") == {"forward", "weight", "both"}
    assert not offered(shape, "cuda", (1 << 22, 8, 9, 9)), "whose elements their indices do not reach"
    with everywhere():
        assert offered(shape, "cuda") == {"forward", "input"}
    assert offered(shape, "cuda") == set(PASSES)
