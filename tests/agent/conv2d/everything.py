"""Models and layers of every kind that the scope "all" replaces."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from comparing import outcome
from patching import patched
from torch import nn
from torch.nn.functional import conv2d as imported_before

everywhere = functools.partial(patched, scope="all")


FUNCTIONS = {
    (1, False): F.conv1d,
    (2, False): F.conv2d,
    (3, False): F.conv3d,
    (1, True): F.conv_transpose1d,
    (2, True): F.conv_transpose2d,
    (3, True): F.conv_transpose3d,
}


class Everything(nn.Module):  # type: ignore[misc] # torch is not installed where types are checked
    """Every layer that hides a convolution or a BatchNorm, and F.conv2d called by itself, on (N, 4, 9, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = nn.Sequential(
            nn.Conv2d(4, 6, 3, padding="same", bias=False),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6, padding_mode="reflect"),
            nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False),
            nn.InstanceNorm2d(4, affine=True),
        )
        # A bias before a normalization would have no gradient but rounding errors.
        self.line = nn.Sequential(
            nn.Conv1d(4, 6, 3, padding=1, bias=False), nn.BatchNorm1d(6), nn.ConvTranspose1d(6, 4, 2)
        )
        self.volume = nn.Sequential(
            nn.Conv3d(4, 2, 3, padding=1, bias=False), nn.BatchNorm3d(2), nn.ConvTranspose3d(2, 2, 2)
        )
        self.weight = nn.Parameter(torch.ones(2, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plane = self.plane(x)
        line = self.line(plane.flatten(2))
        volume = self.volume(plane.unsqueeze(2))
        return imported_before(plane, self.weight).square().mean() + line.square().mean() + volume.square().mean()


def everything() -> Everything:
    """Return the model, the same numbers each time."""
    torch.manual_seed(3)
    return Everything()


def random_layer(chance: random.Random) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a function, operands in double precision and options, some of which native refuses."""
    dimensions, transposed = chance.choice((1, 2, 2, 3)), chance.random() < 0.5
    groups = chance.choice((1, 1, 2, 3))
    inputs, outputs = groups * chance.choice((1, 2)), groups * chance.choice((1, 2, 3))

    def each(*values: int) -> list[int]:
        return [chance.choice(values) for _ in range(dimensions)]

    options: dict[str, Any] = {"stride": each(1, 1, 2, 3), "padding": each(0, 1, 2), "dilation": each(1, 1, 2, 3)}
    options["groups"] = groups
    if transposed:
        options["output_padding"] = each(0, 0, 0, 1, 2)
    elif chance.random() < 0.2:
        options["padding"] = chance.choice(("same", "valid"))
    batch = chance.choice(([0], [1], [2], [2], [3], []))
    pair = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    make = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    x, weight = make([*batch, inputs, *each(3, 5, 8, 11)]), make([*pair, *each(1, 2, 3, 4)])
    if x.dim() == 4 and dimensions == 2 and chance.random() < 0.2:
        x = x.contiguous(memory_format=torch.channels_last)
    bias = make(outputs).requires_grad_() if chance.random() < 0.5 else None
    return FUNCTIONS[dimensions, transposed], (x.requires_grad_(), weight.requires_grad_(), bias), options


def result_or_refusal(function: Any, operands: Any, options: Any) -> Any:
    """Return output and gradients, or the words with which they are refused."""
    try:
        return outcome(function, operands, options)
    except RuntimeError as error:
        return str(error)


def small_cases() -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield a function with operands in double precision for each dimension and direction."""
    generator = torch.Generator().manual_seed(2)
    for (dimensions, _), function in FUNCTIONS.items():
        for stride in (1, 2):
            x = torch.randn([2, 2, *[3] * dimensions], generator=generator, dtype=torch.float64)
            weight = torch.randn([2, 1, *[2] * dimensions], generator=generator, dtype=torch.float64)
            bias = torch.randn(2, generator=generator, dtype=torch.float64)
            options = {"stride": stride, "padding": 1, "groups": 2}
            yield function, [tensor.requires_grad_() for tensor in (x, weight, bias)], options
