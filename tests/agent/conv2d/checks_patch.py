"""The patch on nn.Conv2d: what it replaces, what it leaves alone, and that no module remembers it."""

from __future__ import annotations

import copy
import functools
from contextlib import nullcontext
from typing import Any

import torch
from comparing import unlike
from patching import kernels, patched, small
from rocm_agent.conv2d import is_patched, patch, unpatch
from torch import nn

NATIVE = nn.Conv2d.__dict__["_conv_forward"]


def check_modules_made_before_and_after_the_patch_use_it_and_stop_using_it() -> None:
    x, before = torch.randn(2, 3, 8, 8), small()
    assert any("conv" in name for name in kernels(before, x))
    with patched():
        for module in (before, small()):
            assert not [name for name in kernels(module, x) if "conv" in name]
    assert any("conv" in name for name in kernels(before, x))


def check_unpatch_restores_the_very_same_functions() -> None:
    forward = nn.Conv2d.__dict__["forward"]
    names = set(nn.Conv2d.__dict__)
    for _ in range(2):
        patch()
        assert nn.Conv2d.__dict__["_conv_forward"] is not NATIVE
        unpatch()
        unpatch()
        assert nn.Conv2d.__dict__["_conv_forward"] is NATIVE
    assert nn.Conv2d.__dict__["forward"] is forward
    assert set(nn.Conv2d.__dict__) == names


def check_patching_twice_switches_the_algorithm_and_unpatching_once_is_enough() -> None:
    x, grouped = torch.randn(2, 8, 5, 5), nn.Conv2d(8, 8, 3, groups=4)
    patch("unfold_reference")
    ours = nn.Conv2d.__dict__["_conv_forward"]
    assert any("cat" in name for name in kernels(grouped, x))
    patch("unfold")
    patch("unfold")
    assert nn.Conv2d.__dict__["_conv_forward"] is ours
    assert not any("cat" in name for name in kernels(grouped, x))
    unpatch()
    assert nn.Conv2d.__dict__["_conv_forward"] is NATIVE


def check_is_patched_tells_the_truth() -> None:
    assert not is_patched()
    with patched():
        assert is_patched()
    assert not is_patched()


def check_an_unknown_algorithm_changes_nothing() -> None:
    for wrong in ("off", "", None):
        try:
            patch(wrong)
        except ValueError as error:
            assert "unfold_reference" in str(error)  # noqa: PT017 - no pytest in here
        else:
            raise AssertionError(wrong)
        assert nn.Conv2d.__dict__["_conv_forward"] is NATIVE
        assert not is_patched()


def check_another_patch_on_top_keeps_working_through_unpatch_and_patch() -> None:
    x, calls = torch.randn(2, 3, 8, 8), []
    module = nn.Conv2d(3, 4, 3)
    patch()
    below = nn.Conv2d._conv_forward

    @functools.wraps(below)
    def on_top(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        return below(self, *arguments)

    nn.Conv2d._conv_forward = on_top
    try:
        unpatch()
        assert nn.Conv2d.__dict__["_conv_forward"] is on_top
        assert any("conv" in name for name in kernels(module, x))
        patch()
        assert not any("conv" in name for name in kernels(module, x))
        unpatch()
        assert len(calls) == 2
    finally:
        nn.Conv2d._conv_forward = below
        unpatch()
    assert nn.Conv2d.__dict__["_conv_forward"] is NATIVE


def check_every_padding_mode_gives_natives_results_and_gradients() -> None:
    for mode in ("zeros", "reflect", "replicate", "circular"):
        for padding, kernel in ((1, 3), ((2, 1), (3, 2)), ("same", (4, 3)), ("valid", 2)):
            torch.manual_seed(5)
            module = nn.Conv2d(4, 6, kernel, padding=padding, padding_mode=mode, groups=2)
            results = []
            for context in (patched(), patched("planned"), patched("unfold_reference"), nullcontext()):
                module.zero_grad()
                x = torch.randn(2, 4, 7, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
                with context:
                    y = module(x)
                (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
                results.append([y, x.grad, module.weight.grad, module.bias.grad])
            for result in results[:-1]:
                for which, (a, e) in enumerate(zip(result, results[-1], strict=True)):
                    assert not unlike(str(which), a, e), (mode, padding, which)


def check_subclasses_and_parametrized_modules_use_it() -> None:
    class Scaled(nn.Conv2d):  # type: ignore[misc] # torch is not installed where types are checked
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    x = torch.randn(2, 3, 8, 8)
    for module in (Scaled(3, 4, 3), torch.nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)).eval()):
        expected = module(x)
        with patched():
            assert not any("conv" in name for name in kernels(module, x))
            assert not unlike("y", module(x), expected)


def check_a_lazy_module_uses_it_from_its_first_call() -> None:
    with patched():
        lazy = nn.LazyConv2d(4, 3)
        assert not any("conv" in name for name in kernels(lazy, torch.randn(1, 3, 5, 5)))
        assert type(lazy) is nn.Conv2d
    assert any("conv" in name for name in kernels(lazy, torch.randn(1, 3, 5, 5)))


def check_modules_carry_nothing_of_the_patch() -> None:
    plain = nn.Conv2d(3, 4, 3)
    with patched():
        module = nn.Conv2d(3, 4, 3)
        module(torch.randn(1, 3, 5, 5))
        copied = copy.deepcopy(module)
    for made in (module, copied):
        assert set(vars(made)) == set(vars(plain))
        assert type(made) is nn.Conv2d
        assert list(made.state_dict()) == list(plain.state_dict())


def check_checkpointed_segments_give_natives_gradients() -> None:
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415 - here only

    x = torch.randn(2, 3, 8, 8)
    gradients = []
    for context in (patched(), nullcontext()):
        model = small()
        with context:
            checkpoint(model, x, use_reentrant=False).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for a, e in zip(*gradients, strict=True):
        assert not unlike("gradient", a, e)


def check_sizes_that_change_from_call_to_call_are_followed() -> None:
    model = small()
    for size in ((8, 8), (9, 13), (8, 8), (16, 5)):
        x = torch.randn(1, 3, *size)
        expected = model(x)
        with patched():
            assert not unlike(str(size), model(x), expected)
