"""A patched block, a model to try it on, and a view of the operators that really run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rocm_agent.conv2d import patch, unpatch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Spy(TorchDispatchMode):  # type: ignore[misc] # torch is not installed where types are checked
    """Notes the names of the operators that really run, backward included."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def patched(algorithm: str = "planned", scope: str = "modules") -> Iterator[None]:
    """Patch for the length of a block."""
    patch(algorithm, scope)
    try:
        yield
    finally:
        unpatch()


def kernels(module: nn.Module, x: torch.Tensor) -> set[str]:
    """Return the names of the operators that `module` runs on `x`."""
    spy = Spy()
    with spy:
        module(x)
    return spy.names


def small() -> nn.Sequential:
    """Return a model with a convolution of each sort, the same numbers each time, for inputs of three channels."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 4, padding="same", groups=4, bias=False),
        nn.Conv2d(8, 8, 3, stride=2, padding=(2, 1), padding_mode="reflect", groups=8),
    ).eval()
