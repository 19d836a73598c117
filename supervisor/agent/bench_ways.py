"""The convolution implementations that the benchmark compares, and the device's clock and memory counters."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "path"))

import torch
from rocm_agent.conv2d import ALGORITHMS, conv2d, patch, unpatch
from torch.nn import functional

BOUNDS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The relative L2 distance to float64 up to which a result is right; in float32 Winograd needs it."""
WARM_UPS = 2

Layer = Tuple[Tuple[int, ...], Tuple[int, ...], Dict[str, Any], int]
"""Sizes of input and weight, the options of F.conv2d, and how often the model has this layer."""


class Refused(Exception):  # noqa: N818 - what the user asked for cannot be measured; no error of the program
    """The request cannot be met; the second argument says what to do."""


@contextmanager
def using(name: str, scope: str = "modules") -> Iterator[None]:
    """Have every Conv2d of a model, or with the scope "all" every convolution, computed in the way `name`.

    On ROCm all ways but native keep the entire model from MIOpen, as the agent does in a training.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.enabled
    if name in ALGORITHMS:
        patch(name, scope)
    if name == "no-library" or (name != "native" and getattr(torch.version, "hip", None)):
        cudnn.enabled = False
    try:
        yield
    finally:
        unpatch()
        cudnn.enabled = before


def passes(
    name: str, operands: Tuple[Any, ...], dy: Any, options: Dict[str, Any], scope: str = "modules"
) -> Tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return the forward pass of `name`, and what makes of its result the gradients of input and weight."""

    def backward(y: Any) -> Any:
        return torch.autograd.grad(y, operands[:2], dy)

    if name in ALGORITHMS and scope == "modules":
        return lambda: conv2d(*operands, **options, algorithm=name), backward
    return lambda: functional.conv2d(*operands, **options), backward


class Clock:
    """Milliseconds and memory of a device: by its own events on a GPU, by the process's clock on a CPU."""

    def __init__(self, device: str) -> None:
        self.device, self.on_gpu = device, device == "cuda"

    def mark(self) -> Any:
        """Return a moment in the device's own order of work."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: Any, second: Any) -> float:
        """Return the milliseconds from one moment to another."""
        if not self.on_gpu:
            return float(second - first) * 1e3
        second.synchronize()
        return float(first.elapsed_time(second))

    def start(self) -> int:
        """Begin to watch the device's memory and return what is in use, 0 on a CPU, where torch does not count."""
        if not self.on_gpu:
            return 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())

    def peak(self) -> Any:
        """Return the most bytes in use since `start`, None on a CPU."""
        return int(torch.cuda.max_memory_allocated()) if self.on_gpu else None

    def in_use(self) -> int:
        """Return the bytes that torch has in use on the GPU, on a CPU those that the process has in memory."""
        if self.on_gpu:
            return int(torch.cuda.memory_allocated())
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def median(values: List[float]) -> float:
    """Return the middle value, the upper of two."""
    return sorted(values)[len(values) // 2]


def distance(actual: Any, expected: Any) -> float:
    """Return the L2 distance relative to `expected`."""
    gap, size = (actual.double() - expected).norm(), expected.norm()
    return float(gap / size) if float(size) else float(gap)
