"""Reads numbers out of tensors for the record; it never makes a training wait for its GPU."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, List, Optional, Tuple

MEMORY_EVERY_NS = 1_000_000_000

Pair = Tuple[Optional[float], Optional[float]]


def is_scalar(value: Any) -> bool:
    """Whether `value` is a tensor of one element."""
    return hasattr(value, "numel") and value.numel() == 1


def number(value: Any) -> Optional[float]:
    """Return a number or a tensor of one element as a float, None where that would wait for a GPU or makes no sense."""
    if value is None or isinstance(value, (int, float)):
        return None if value is None else float(value)
    if hasattr(value, "numel"):
        return float(value.detach()) if value.numel() == 1 and not value.is_cuda else None
    return float(value)


class LateScalars:
    """A loss and a gradient norm, read at once from the CPU and one step late from a GPU.

    The copy to pinned memory joins the GPU's queue and is picked up when its event has passed, so a loss in the
    record of step n is that of step n - 1, or of the newest step whose copy had arrived by then.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._event: Any = None
        self._pinned: List[Any] = [None, None]
        self._under_way: Tuple[bool, bool] = (False, False)

    def exchange(self, loss: Any, grad_norm: Any) -> Pair:
        """Take this step's tensors (or floats, or None) and return the numbers that can be had now."""
        on_gpu = getattr(loss, "is_cuda", False) or getattr(grad_norm, "is_cuda", False)
        if not on_gpu and self._under_way == (False, False):
            return (number(loss), number(grad_norm))
        if self._torch.cuda.is_current_stream_capturing():
            return (None, None)  # asking an event would break the capture
        arrived = self._arrived()
        if self._under_way == (False, False):
            self._under_way = (self._send(0, loss), self._send(1, grad_norm))
            self._event = self._event or self._torch.cuda.Event()
            self._event.record()
        return arrived

    def _arrived(self) -> Pair:
        if self._under_way == (False, False) or not self._event.query():
            return (None, None)
        (loss, grad_norm), self._under_way = self._under_way, (False, False)
        return (float(self._pinned[0]) if loss else None, float(self._pinned[1]) if grad_norm else None)

    def _send(self, place: int, value: Any) -> bool:
        """Begin the copy of a scalar; its type is kept, since a conversion would be a kernel more at every step."""
        if not is_scalar(value):
            return False
        pinned = self._pinned[place]
        if pinned is None or pinned.dtype != value.dtype:
            pinned = self._pinned[place] = self._torch.empty(1, dtype=value.dtype, pin_memory=True)
        pinned.copy_(value.detach().view(1), non_blocking=True)
        return True


class GpuMemory:
    """Memory that the allocator holds on this process's GPU, asked at most once a second."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._next_ns = 0
        self._bytes: Optional[int] = None

    def read(self) -> Optional[int]:
        """Return bytes, None where no GPU is in use."""
        now = monotonic_ns()
        if now >= self._next_ns:
            self._next_ns = now + MEMORY_EVERY_NS
            self._bytes = int(self._cuda.memory_reserved()) if self._cuda.is_initialized() else None
        return self._bytes
