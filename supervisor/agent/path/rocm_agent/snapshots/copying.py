"""Copies a nested state off the device at a step boundary. The training waits for the copy only.

The buffers are made once, outside the step loop, and used again: pinned for what lies on a GPU, so that the copy joins
the GPU's queue on a stream of its own and the host goes on. What the training enqueues afterwards waits, on the GPU,
until the copy is through: nothing can change underneath it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, List, Tuple

from . import sharding

Place = Tuple[Any, ...]


class Copier:
    """One set of buffers: one copy at a time."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._buffers: Dict[Place, Any] = {}
        self._streams: Dict[Any, Any] = {}

    def reserve(self, state: Any) -> None:
        """Make the buffers for a state like this one; it may run in parallel with the training."""
        mapped(state, self._buffer_at)

    def copy(self, state: Any) -> Tuple[Any, Callable[[], float]]:
        """Begin the copy; return it with a function that waits for its end and returns how long the GPU took for it.

        The copy is the copier's: the next one writes over it.
        """
        pairs: List[Tuple[Any, Any]] = []
        same: Dict[Tuple[Any, ...], Any] = {}

        def begin(place: Place, tensor: Any) -> Any:
            key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if tensor.numel() and key in same:  # tied weights stay tied
                return same[key]
            same[key] = buffer = self._buffer_at(place, tensor)
            pairs.append((buffer, tensor))
            return buffer

        with self._torch.no_grad(), self._torch.inference_mode(mode=False):
            copied = mapped(state, begin)
            return copied, self._begin_copies(pairs)

    def _buffer_at(self, place: Place, tensor: Any) -> Any:
        """Return the buffer at a place in the state, a new one where the tensor there is another than last time."""
        found = self._buffers.get(place)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            with self._torch.inference_mode(mode=False):
                found = self._allocate_like(tensor)
            self._buffers[place] = found
        return found

    def _allocate_like(self, tensor: Any) -> Any:
        if tensor.is_cuda:
            try:
                return self._torch.empty_like(tensor, device="cpu", pin_memory=True)
            except RuntimeError:  # no more memory can be pinned: an ordinary copy holds the training up longer
                pass
        return self._torch.zeros_like(tensor, device="cpu")  # written to, so that the first copy meets no page fault

    def _begin_copies(self, pairs: List[Tuple[Any, Any]]) -> Callable[[], float]:
        cuda = self._torch.cuda
        by_device: Dict[Any, List[Tuple[Any, Any]]] = {}
        for pair in pairs:
            by_device.setdefault(pair[1].device, []).append(pair)
        events = []
        for device, some in by_device.items():
            if device.type != "cuda":
                copy_all(self._torch, *_unzip(some))
                continue
            stream = self._streams.get(device) or cuda.Stream(device)
            self._streams[device] = stream
            main = cuda.current_stream(device)
            began, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            stream.wait_stream(main)
            with cuda.stream(stream):
                began.record(stream)
                copy_all(self._torch, *_unzip(some))
                ended.record(stream)
            main.wait_event(ended)
            events.append((began, ended))

        def wait() -> float:
            took_s = 0.0
            for began, ended in events:
                ended.synchronize()
                took_s = max(took_s, began.elapsed_time(ended) / 1e3)
            return took_s

        return wait


def _unzip(pairs: List[Tuple[Any, Any]]) -> Tuple[List[Any], List[Any]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def copy_all(torch: Any, targets: List[Any], sources: List[Any]) -> None:
    """Copy each source into its target, in one call where this torch has it."""
    together = getattr(torch, "_foreach_copy_", None)
    if together is not None:
        together(targets, sources, non_blocking=True)
        return
    for target, source in zip(targets, sources):
        target.copy_(source, non_blocking=True)


def mapped(state: Any, function: Callable[[Place, Any], Any], place: Place = ()) -> Any:
    """Return the state with every tensor replaced by `function(its place, it)`, and with containers of its own."""
    if hasattr(state, "detach") and hasattr(state, "data_ptr"):
        return function(place, state.detach())
    if isinstance(state, OrderedDict):
        made = OrderedDict((key, mapped(value, function, (*place, key))) for key, value in state.items())
        if hasattr(state, "_metadata"):
            made._metadata = state._metadata  # by which modules know the layout that a state has
        return made
    if isinstance(state, dict) and sharding.LOCAL in state and state.get(sharding.PART) == 1:
        # The rest of a part says how it lies, in small tuples: looking into each costs more than the copy's begin.
        return {**state, sharding.LOCAL: function((*place, sharding.LOCAL), state[sharding.LOCAL].detach())}
    if isinstance(state, dict):
        return {key: mapped(value, function, (*place, key)) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        if sharding.is_plain(state):
            return state if isinstance(state, tuple) else list(state)
        parts = [mapped(value, function, (*place, index)) for index, value in enumerate(state)]
        if hasattr(state, "_fields"):
            return type(state)(*parts)
        return tuple(parts) if isinstance(state, tuple) else parts
    return state
