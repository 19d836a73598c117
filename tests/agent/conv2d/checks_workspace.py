"""How much memory each family takes beside its operands and its result: what it says, and no more than it may."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from comparing import operands
from rocm_agent.conv2d.case import Case
from rocm_agent.conv2d.geometry import geometry
from rocm_agent.conv2d.limits import Limits
from torch.utils._python_dispatch import TorchDispatchMode

ROOM = 1.02
"""Constant matrices, sums and the like, which no estimate counts."""
LAYERS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, int]], ...] = (
    ((6, 16, 24, 28), (20, 16, 3, 3), {"padding": 1}),
    ((6, 3, 40, 44), (16, 3, 3, 3), {"padding": 1, "stride": 2}),
    ((6, 3, 45, 43), (8, 3, 7, 7), {"padding": 3, "stride": 2}),
    ((6, 8, 20, 22), (12, 8, 3, 3), {"padding": 2, "dilation": 2}),
    ((6, 32, 16, 20), (24, 32, 1, 1), {}),
    ((6, 32, 16, 20), (24, 32, 1, 1), {"stride": 2}),
    ((6, 24, 16, 22), (24, 1, 3, 3), {"padding": 1, "groups": 24}),
    ((6, 24, 17, 23), (48, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 24}),
    ((6, 24, 16, 22), (36, 6, 3, 3), {"padding": 1, "groups": 4}),
)


class Watched(TorchDispatchMode):  # type: ignore[misc] # torch is not installed where types are checked
    """Follows the memory of every tensor that an operator makes, until it is freed."""

    def __init__(self, operands: set[int]) -> None:
        """`operands` are addresses of what is there before."""
        super().__init__()
        self._operands = operands
        self.events: list[tuple[int, int]] = []
        self.held: dict[int, list[int]] = {}
        """By address: how many tensors share the storage, and its number."""
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._seen(tensor)
        return result

    def number_of(self, tensor: torch.Tensor) -> int:
        """Return the number of the tensor's storage."""
        return self.held[_address(tensor)][1]

    def _seen(self, tensor: torch.Tensor) -> None:
        address = _address(tensor)
        if address in self._operands:
            return
        if address not in self.held:
            self.bytes.append(_bytes(tensor))
            self.held[address] = [0, len(self.bytes) - 1]
            self.events.append((self.held[address][1], 1))
        self.held[address][0] += 1
        weakref.finalize(tensor, self._gone, address)

    def _gone(self, address: int) -> None:
        self.held[address][0] -= 1
        if self.held[address][0] == 0:
            self.events.append((self.held.pop(address)[1], -1))

    def is_exact(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage holds nothing else."""
        return _bytes(tensor) == tensor.numel() * tensor.element_size()

    def peak(self, but: set[int]) -> int:
        """Return the most bytes that lived at once in storages that are not `but`."""
        most = now = 0
        for number, change in self.events:
            if number not in but:
                now += change * self.bytes[number]
                most = max(most, now)
        return most


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def _address(tensor: torch.Tensor) -> int:
    return int(_storage(tensor).data_ptr())


def _bytes(tensor: torch.Tensor) -> int:
    return int(_storage(tensor).nbytes())


def workspace(run: Any, given: tuple[Any, ...]) -> int:
    """Return the bytes that `run` takes beside its operands and its result."""
    run(*given)  # constant matrices are made once and stay
    watched = Watched({_address(tensor) for tensor in given if isinstance(tensor, torch.Tensor)})
    with watched:
        result = run(*given)
    results = result if isinstance(result, tuple) else (result,)
    assert all(watched.is_exact(tensor) for tensor in results), "a result holds more memory than it shows"
    return watched.peak({watched.number_of(tensor) for tensor in results})


def cases(allowed: Limits, dtype: torch.dtype = torch.float32) -> Any:
    """Yield each layer as the planner sees it, and the operands of its passes."""
    for x_size, w_size, options in LAYERS:
        x, weight, _ = (tensor.detach() for tensor in operands(x_size, w_size, dtype))
        given = {"stride": 1, "padding": 0, "dilation": 1, **options}
        pairs = [(value, value) for name, value in given.items() if name != "groups"]
        shape = geometry(x_size, w_size, None, *pairs, options.get("groups", 1))
        dy, size = torch.ones(x_size[0], w_size[0], *shape.out, dtype=dtype), tuple(x_size[2:])
        case = Case(x_size, w_size, dtype, torch.device("cpu"), shape, allowed)
        passes = {
            "forward": (x, weight, None, shape),
            "input": (dy, weight, size, shape),
            "weight": (dy, x, shape),
            "both": (dy, x, weight, shape),
        }
        yield case, passes


def check_no_family_takes_more_memory_than_it_says() -> None:
    compared = 0
    for dtype in (torch.float32, torch.bfloat16):
        for case, passes in cases(Limits(), dtype):
            for kind, given in passes.items():
                for name, candidate in case.candidates(kind).items():
                    if candidate.one_by_one:
                        continue
                    output = torch.empty(0, dtype=dtype).element_size() * (
                        candidate.need.fixed + case.x[0] * candidate.need.a_sample
                    )
                    with torch.no_grad():
                        took = workspace(candidate.run, given)
                    assert took <= output * ROOM + 1024, (case.exact, kind, name, took, output)
                    compared += 1
    assert compared > 140, compared


def check_no_pass_takes_more_memory_than_the_setting_allows() -> None:
    parted = 0
    with torch.no_grad():
        for allowed_mb in (0.5, 1.0):
            for case, passes in cases(Limits(workspace_mb=allowed_mb)):
                for kind, given in passes.items():
                    for name, candidate in case.candidates(kind).items():
                        run = case.function(kind, candidate)
                        took = workspace(run, given)
                        assert took <= allowed_mb * (1 << 20) * ROOM, (case.exact, kind, name, took)
                        parted += run is not candidate.run
    assert parted > 100
