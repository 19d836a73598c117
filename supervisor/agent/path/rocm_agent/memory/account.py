"""Counts the bytes of every tensor that is alive, as a GPU's allocator would hold them, in a training on the CPU.

Each operation is seen below autograd, so what autograd keeps for the backward pass is counted for as long as it is
kept. What a kernel takes only while it runs is not seen. Most is not computed (`shapes_only.py`).
"""

from __future__ import annotations

import gc
import weakref
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .trace import BLOCK_BYTES

DEPTH_LIMIT = 4
NO_BACKWARD = -1
"""The number of autograd's task where none is under way."""


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors in a result or a batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < DEPTH_LIMIT and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth + 1)
    elif depth < DEPTH_LIMIT and hasattr(value, "values") and callable(value.values):
        for item in value.values():
            yield from tensors_in(item, depth + 1)


class Account(TorchDispatchMode):
    """Bytes alive now, and the most since `reset_peak`."""

    def __init__(self, shapes: Optional[Any] = None) -> None:
        """`shapes` runs the operations; None: they are computed."""
        super().__init__()
        self._shapes = shapes
        self.live_bytes = 0
        self.peak_bytes = 0
        self.backward_peak_bytes = 0
        """The most within a backward pass; `forward_peak_bytes` the most outside of one."""
        self.forward_peak_bytes = 0
        self.paused = False
        """While a loader works in this process: data sets lie in host memory."""
        self.events: List[int] = []
        """Blocks in units of `BLOCK_BYTES` in their order, and less than zero those freed, by their number from 1."""
        self.taken = 0
        """How many blocks there were so far."""
        self._known: Dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and count what it made."""
        if self.paused:
            return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {})) if self._shapes is None else self._shapes.call(func, args, kwargs or {})
        for tensor in tensors_in(result):
            self.add(tensor)
        return result

    def add(self, tensor: Any) -> None:
        """Count the storage of a tensor until it is freed."""
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        size = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        key = storage._cdata
        if not size or key in self._known:
            return
        self.taken += 1
        number = self.taken
        self.events.append(size // BLOCK_BYTES)
        self._known[key] = weakref.ref(storage, lambda _: self._forget(key, size, number))
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if torch._C._current_graph_task_id() == NO_BACKWARD:
            self.forward_peak_bytes = max(self.forward_peak_bytes, self.live_bytes)
        else:
            self.backward_peak_bytes = max(self.backward_peak_bytes, self.live_bytes)

    def add_modules(self) -> None:
        """Count the weights and buffers of every module of the process: what lives on the GPU before the first step."""
        # By type: isinstance() asks objects for their class, which some answer with a warning.
        for module in [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]:
            for tensors in (module._parameters.values(), module._buffers.values()):
                for tensor in tensors:
                    if tensor is not None:
                        self.add(tensor)

    def reset_peak(self) -> None:
        """Begin a new peak at what is alive."""
        self.peak_bytes = self.live_bytes
        self.forward_peak_bytes = self.backward_peak_bytes = 0

    def _forget(self, key: int, size: int, number: int) -> None:
        self._known.pop(key, None)
        self.events.append(-number)
        self.live_bytes -= size
