"""The short way of a convolution like one before: it is taken, makes the same, and is not taken where it may not."""

from __future__ import annotations

from typing import Any

import torch
from checking import Skip
from comparing import differences, operands, outcome, unlike
from rocm_agent.conv2d import conv2d, limits, planner
from rocm_agent.conv2d.fast_path import fast_path
from rocm_agent.conv2d.padding import framed
from torch.nn.functional import conv2d as native
from torch.nn.functional import pad

Sizes = tuple[int, ...]

CASES: dict[str, tuple[Sizes, Sizes, dict[str, Any]]] = {
    "3x3": ((3, 8, 9, 7), (6, 8, 3, 3), {"padding": (1, 1), "stride": (2, 2)}),
    "1x1": ((3, 8, 9, 7), (6, 8, 1, 1), {"padding": (0, 0), "stride": (1, 1)}),
    "1x1 with a stride": ((3, 8, 9, 7), (6, 8, 1, 1), {"padding": (0, 0), "stride": (2, 1)}),
    "1x1, one sample": ((1, 8, 9, 7), (6, 8, 1, 1), {"padding": (0, 0), "stride": (1, 1)}),
    "depthwise": ((3, 8, 9, 7), (8, 1, 3, 3), {"padding": (1, 1), "stride": (1, 1), "groups": 8}),
    "grouped": ((3, 8, 9, 7), (6, 4, 3, 3), {"padding": (1, 1), "stride": (1, 1), "groups": 2}),
}


def short(x: Any, weight: Any, bias: Any, **options: Any) -> Any:
    """Call the short way with F.conv2d's arguments."""
    given = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, **options}
    return fast_path(x, weight, bias, **given)


def planned(x: Any, weight: Any, bias: Any, **options: Any) -> Any:
    """Call conv2d with every pair as a module passes it."""
    return conv2d(x, weight, bias, **{"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **options})


def check_the_second_call_takes_the_short_way_and_all_of_them_give_natives_results() -> None:
    for name, (x, weight, options) in CASES.items():
        for bias in (True, False):
            planner.use(limits.Limits(folder=None, tune_s=0.0))
            made = operands(x, weight, bias=bias)
            assert short(*made, **options) is None, name
            for _ in range(3):
                found = differences(planned, native, made, options)
                assert not found, (name, found)
            found = unlike(name, short(*made, **options), native(*made, **options))
            assert not found, found


def check_gradients_of_either_operand_alone_and_of_strange_layouts_are_natives_too() -> None:
    for x, weight, options in CASES.values():
        made = operands(x, weight)
        for _ in range(2):
            assert not differences(planned, native, made, options)
        for frozen in (0, 1):
            given = [operand.detach().requires_grad_(at != frozen) for at, operand in enumerate(made)]
            assert not differences(planned, native, tuple(given), options)
        given = (made[0].detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_(), *made[1:])
        last = given[1].detach().to(memory_format=torch.channels_last).requires_grad_()
        assert not differences(planned, native, (given[0], last, given[2]), options)
        parts = (torch.cat((made[0], made[0]))[1 : len(made[0]) + 1], torch.cat((made[1], made[1]))[len(made[1]) :])
        leaves = tuple(part.detach().requires_grad_() for part in parts)
        assert not differences(planned, native, (*leaves, made[2]), options)
        spread = torch.ones(()).expand(native(*made, **options).shape)
        pairs = zip(outcome(planned, made, options, spread), outcome(native, made, options, spread), strict=True)
        assert not [text for got, expected in pairs for text in unlike("expanded", got, expected)]


def check_what_equals_an_integer_but_is_none_is_refused_after_a_good_call_as_before() -> None:
    made = operands((2, 4, 6, 6), (4, 4, 1, 1))
    for _ in range(2):
        planned(*made)
    for wrong in ({"stride": (True, True)}, {"dilation": (1.0, 1.0)}, {"padding": (0, False)}, {"groups": True}):
        try:
            planned(*made, **wrong)
        except TypeError:
            continue
        raise AssertionError(wrong)


def check_operands_of_other_dtypes_are_refused_after_a_good_call_as_before() -> None:
    x, weight, bias = operands((2, 4, 6, 6), (4, 4, 1, 1))
    for _ in range(2):
        planned(x, weight, bias)
    for given in ((x.double(), weight, bias), (x, weight.double(), bias), (x, weight, bias.double())):
        try:
            planned(*given)
        except RuntimeError as error:
            assert "should be the same" in str(error)  # noqa: PT017 - no pytest in here
        else:
            raise AssertionError


def check_autocast_is_asked_at_each_call() -> None:
    made = operands((2, 4, 6, 6), (4, 4, 1, 1))
    for _ in range(2):
        for enabled in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                found, expected = outcome(planned, made, {}), outcome(native, made, {})
            bound = 2e-2 if enabled else None
            assert not [text for a, e in zip(found, expected, strict=True) for text in unlike("", a, e, bound)], enabled


def check_a_transform_after_a_plain_call_is_followed() -> None:
    if not hasattr(torch, "func"):
        raise Skip(f"torch {torch.__version__} has no torch.func")
    x, weight, _ = operands((2, 4, 6, 6), (4, 4, 1, 1))
    leaked = []

    def loss(w: torch.Tensor, function: Any) -> torch.Tensor:
        leaked.append(w)
        return function(x, w, None).square().sum()

    for _ in range(2):
        planned(x, weight, None)
    found, expected = (torch.func.grad(loss)(weight.detach(), function) for function in (planned, native))
    assert not unlike("grad", found, expected)
    for tensor in leaked:  # which is of no transform any more
        assert not unlike("leaked", planned(x, tensor, None), native(x, tensor, None))
    each = torch.func.vmap(lambda item: planned(item, weight, None))(torch.stack((x, 2 * x)))
    assert not unlike("vmap", each[1], native(2 * x, weight, None))


def check_new_limits_forget_what_was_remembered() -> None:
    made = operands((2, 4, 6, 6), (4, 4, 1, 1))
    planned(*made)
    assert short(*made) is not None
    planner.use(limits.Limits(folder=None, tune_s=0.0))
    assert short(*made) is None


def check_a_frame_of_zeros_is_what_padding_makes() -> None:
    for dtype in (torch.float32, torch.float64):
        x = operands((2, 3, 4, 5), (1, 1, 1, 1), dtype)[0].detach()
        for source in (x, x.transpose(2, 3)):
            made = framed(source, 2, 1)
            assert torch.equal(made, pad(source, (1, 1, 2, 2)))
            assert made.is_contiguous()
