"""What tells a wrong pass from a network that amplifies rounding, for tests/bench/networks.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from comparing import distance
from patching import patched
from rocm_agent.conv2d import fallback

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import networks_passes
from networks_passes import Pass

TIMES, FLOOR = 30.0, 2e-5


class Beside(torch.nn.Module):
    """Takes away what it was made with, all but a ten-millionth, so that rounding decides what passes a ReLU."""

    def __init__(self, held: torch.Tensor) -> None:
        super().__init__()
        self._held = held

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return (y - self._held) + 1e-7 * self._held.flip(0)


def amplifying() -> Any:
    """Return a network and its input: what reaches the ReLU is next to nothing beside what the convolution sums."""
    generator = torch.Generator().manual_seed(3)
    first, last = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 3)
    x = torch.randn(2, 8, 12, 12, generator=generator)
    with torch.no_grad():
        for parameter in (*first.parameters(), *last.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        held = first(x)
    return torch.nn.Sequential(first, Beside(held), torch.nn.ReLU(), last), x


def gradients(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.zero_grad()
    net(x).square().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def measured(net: Any, x: torch.Tensor) -> list[Pass]:
    with patched("planned"), networks_passes.kept() as kept:
        gradients(net, x)
    return networks_passes.passes(kept)


def check_each_pass_of_a_network_that_amplifies_rounding_is_right_by_itself() -> None:
    net, x = amplifying()
    found = measured(net, x)
    assert [each.kind for each in found].count("forward") == 2
    assert {each.kind for each in found} == {"forward", "input", "weight"}
    assert networks_passes.wrong(found, TIMES, FLOOR) == ""
    assert 0 < networks_passes.rounding(found) < 2e-6


def check_a_pass_that_is_wrong_by_a_thousandth_is_named() -> None:
    net, x = amplifying()
    names = ("both_gradients", "weight_gradient")
    before = {name: getattr(fallback, name) for name in names}

    def spoilt(run: Any) -> Any:
        def wrong(*operands: Any) -> Any:
            made = run(*operands)
            return (made[0], made[1] * 1.001) if isinstance(made, tuple) else made * 1.001

        return wrong

    for name in names:
        setattr(fallback, name, spoilt(before[name]))
    try:
        found = measured(net, x)
    finally:
        for name, run in before.items():
            setattr(fallback, name, run)
    assert networks_passes.wrong(found, TIMES, FLOOR).startswith("the weight pass of float32 8>")


def check_a_pass_that_makes_no_number_is_named() -> None:
    assert "forward" in networks_passes.wrong([Pass("forward", "a layer", float("nan"), 1e-7)], TIMES, FLOOR)


def check_native_goes_as_far_where_its_results_are_changed_by_what_is_rounded_and_is_itself_again_afterwards() -> None:
    net, x = amplifying()
    native, ordinary = gradients(net, x), torch.nn.Sequential(net[0], net[3])
    with networks_passes.perturbed(net, 3e-7, seed=0):
        assert distance(gradients(net, x), native) > 1e-2
    assert distance(gradients(net, x), native) == 0
    plain = gradients(ordinary, x)
    with networks_passes.perturbed(ordinary, 3e-7, seed=0):
        assert 0 < distance(gradients(ordinary, x), plain) < 1e-5
