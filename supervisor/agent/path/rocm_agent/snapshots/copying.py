"""Copies a nested state off the device at a step boundary. The training waits for the copy only.

The buffers are made once, outside the step loop, and used again: pinned for what lies on a GPU, so that the copy joins
the GPU's queue on a stream of its own and the host goes on. What the training enqueues afterwards waits, on the GPU,
until the copy is through: nothing can change underneath it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Tuple

from . import sharding

Place = Tuple[Any, ...]
LOOK_S = 0.001
"""Between two looks at whether a GPU has copied."""


class Later:
    """Stands for a value at the top of a state that is made when its turn comes: a GPU copies the weights meanwhile."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def made_now(value: Any) -> Any:
    """Return a value, made now where it was to be made later."""
    return value.make() if type(value) is Later else value


def all_made(state: Dict[Any, Any]) -> Dict[Any, Any]:
    """Return a state of which nothing is to be made later, so that another thread may look at it."""
    return {key: made_now(value) for key, value in state.items()}


class _Slot:
    """What is kept for the n-th tensor below a key at the top of the state, from one copy to the next."""

    __slots__ = ("buffer", "dtype", "is_cuda", "part", "shape", "spec")

    def __init__(self) -> None:
        self.buffer: Any = None
        self.shape: Any = None
        self.dtype: Any = None
        self.is_cuda = False
        self.spec: Any = None
        """How the DTensor was spread of which `part` was made: the same object unless that has changed."""
        self.part: Any = None


class Copier:
    """One set of buffers: one copy at a time."""

    def __init__(self, torch: Any, *, parts: bool = False) -> None:
        """`parts`: of a tensor that is spread over ranks this rank's part is copied, see `sharding.to_parts`."""
        self._torch = torch
        self._parts = parts
        self._slots: Dict[Any, List[_Slot]] = {}
        """By a key at the top of the state, in the order of the tensors below it."""
        self._row: List[_Slot] = []
        self._at = 0
        """Of the slots in `_row`, which is the next."""
        self._met: Dict[int, Tuple[Any, Any]] = {}
        """By where a tensor lies, the first one there and its buffer."""
        self._met_also: Dict[Tuple[Any, ...], Any] = {}
        self._pairs: Dict[int, Tuple[List[Any], List[Any]]] = {}
        """Buffers and what is still to be copied into them, by the number of the GPU; -1 for all else."""
        self._streams: Dict[int, Any] = {}

    def reserve(self, state: Any) -> None:
        """Make the buffers for a state like this one; it may run in parallel with the training."""
        self._walk_all(state, lambda: None)
        self._pairs.clear()

    def copy(self, state: Any) -> Tuple[Any, Callable[[], float]]:
        """Begin the copy; return it with a function that waits for its end and returns how long the GPU took for it.

        The copy is the copier's: the next one writes over it.
        """
        copies = _Copies(self._torch, self._streams, self._pairs)
        copied = self._walk_all(state, copies.begin)
        return copied, copies.end()

    def _walk_all(self, state: Any, after_each: Callable[[], None]) -> Any:
        """Return the state with a buffer for each tensor; `after_each` key at its top, so that a GPU begins early."""
        self._pairs.clear()
        try:
            with self._torch.no_grad(), self._torch.inference_mode(mode=False):
                if type(state) is not dict:
                    copied = self._walk_below(None, state)
                    after_each()
                    return copied
                made = {}
                for key, value in state.items():
                    made[key] = self._walk_below(key, made_now(value))
                    after_each()
                return made
        finally:
            self._met, self._met_also = {}, {}  # they keep tensors that the training may give up

    def _walk_below(self, key: Any, value: Any) -> Any:
        self._row, self._at = self._slots.setdefault(key, []), 0
        return self._walk(value)

    def _walk(self, value: Any) -> Any:
        """Do as `mapped` does; the training waits meanwhile."""
        kind = type(value)
        if kind in sharding.PLAIN:
            return value
        if kind is dict:
            if sharding.LOCAL in value and value.get(sharding.PART) == 1:
                return {**value, sharding.LOCAL: self._buffer_for(self._next_slot(), value[sharding.LOCAL])}
            return {key: item if type(item) in sharding.PLAIN else self._walk(item) for key, item in value.items()}
        if hasattr(value, "detach") and hasattr(value, "data_ptr"):
            slot = self._next_slot()
            if self._parts and sharding.is_spread(value):
                return self._part_for(slot, value)
            return self._buffer_for(slot, value)
        return with_items(value, lambda _, item: self._walk(item))

    def _next_slot(self) -> _Slot:
        at = self._at
        self._at = at + 1
        if at == len(self._row):
            self._row.append(_Slot())
        return self._row[at]

    def _part_for(self, slot: _Slot, tensor: Any) -> Any:
        """Return what stands for a tensor that is spread; what is known of it from last time is looked at, not made."""
        buffer, spec = self._buffer_for(slot, sharding.local_of(tensor)), getattr(tensor, "_spec", None)
        if spec is None or slot.spec is not spec or slot.part[sharding.LOCAL] is not buffer:
            slot.spec, slot.part = spec, {sharding.PART: 1, sharding.LOCAL: buffer, **sharding.layout_at(tensor)}
        return slot.part

    def _buffer_for(self, slot: _Slot, tensor: Any) -> Any:
        """Return the buffer that a tensor is to be copied into; of tied weights the same."""
        address = tensor.data_ptr()
        met = self._met.get(address)
        if met is None:
            buffer = self._own_buffer(slot, tensor)
            self._met[address] = tensor, buffer
            return buffer
        key = _key_of(tensor)
        found = met[1] if _key_of(met[0]) == key else self._met_also.get(key)
        if found is not None and tensor.numel():
            return found
        self._met_also[key] = buffer = self._own_buffer(slot, tensor)
        return buffer

    def _own_buffer(self, slot: _Slot, tensor: Any) -> Any:
        """Return the slot's buffer, a new one where the tensor is another than last time; note what is to be copied."""
        shape, dtype, is_cuda = tensor.shape, tensor.dtype, tensor.is_cuda
        if slot.buffer is None or slot.shape != shape or slot.dtype != dtype or slot.is_cuda != is_cuda:
            slot.buffer = self._allocate_like(tensor.detach())
            slot.shape, slot.dtype, slot.is_cuda = shape, dtype, is_cuda
        device = tensor.get_device() if is_cuda else -1
        pairs = self._pairs.get(device)
        if pairs is None:
            pairs = self._pairs[device] = ([], [])
        pairs[0].append(slot.buffer)
        pairs[1].append(tensor)
        return slot.buffer

    def _allocate_like(self, tensor: Any) -> Any:
        if tensor.is_cuda:
            try:
                return self._torch.empty_like(tensor, device="cpu", pin_memory=True)
            except RuntimeError:  # no more memory can be pinned: an ordinary copy holds the training up longer
                pass
        return self._torch.zeros_like(tensor, device="cpu")  # written to, so that the first copy meets no page fault


def _key_of(tensor: Any) -> Tuple[Any, ...]:
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class _Copies:
    """What is enqueued for one copy."""

    def __init__(self, torch: Any, streams: Dict[int, Any], pairs: Dict[int, Tuple[List[Any], List[Any]]]) -> None:
        self._torch, self._streams, self._pairs = torch, streams, pairs
        self._here: List[Tuple[List[Any], List[Any]]] = []
        """What does not lie on a GPU: copied last, while the GPUs copy."""
        self._events: Dict[int, Tuple[Any, Any]] = {}
        """By a GPU's number, those at the begin and at the end of its copies."""

    def begin(self) -> None:
        """Enqueue what was found since the last call."""
        for device, pairs in self._pairs.items():
            if device < 0:
                self._here.append(pairs)
                continue
            stream = self._begin_on(device)
            with self._torch.cuda.stream(stream):
                copy_all(self._torch, *pairs)
        self._pairs.clear()

    def end(self) -> Callable[[], float]:
        """Have the training wait, on the GPU, for the copies; return what waits for them here."""
        events = tuple(self._events.values())
        for device, (_, ended) in self._events.items():
            ended.record(self._streams[device])
            self._torch.cuda.current_stream(device).wait_event(ended)
        with self._torch.no_grad():
            for pairs in self._here:
                copy_all(self._torch, *pairs)

        def wait() -> float:
            took_s = 0.0
            for began, ended in events:
                while not ended.query():  # `synchronize` spins, and the training needs the processor
                    time.sleep(LOOK_S)
                took_s = max(took_s, began.elapsed_time(ended) / 1e3)
            return took_s

        return wait

    def _begin_on(self, device: int) -> Any:
        """Return the stream for copies; the first time, have it wait for what the training has enqueued."""
        cuda = self._torch.cuda
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = cuda.Stream(device)
        if device not in self._events:
            began, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            stream.wait_stream(cuda.current_stream(device))
            began.record(stream)
            self._events[device] = began, ended
        return stream


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
    if isinstance(state, dict) and sharding.LOCAL in state and state.get(sharding.PART) == 1:
        # The rest of a part says how it lies, in small tuples.
        return {**state, sharding.LOCAL: function((*place, sharding.LOCAL), state[sharding.LOCAL].detach())}
    return with_items(state, lambda key, value: mapped(value, function, (*place, key)))


def with_items(state: Any, replaced: Callable[[Any, Any], Any]) -> Any:
    """Return a container of its own with `replaced(key or index, item)` for each item; what is none as it is."""
    if isinstance(state, OrderedDict):
        made = OrderedDict((key, replaced(key, value)) for key, value in state.items())
        if hasattr(state, "_metadata"):
            made._metadata = state._metadata  # by which modules know the layout that a state has
        return made
    if isinstance(state, dict):
        return {key: replaced(key, value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        if sharding.is_plain(state):
            return state if isinstance(state, tuple) else list(state)
        parts = [replaced(index, value) for index, value in enumerate(state)]
        if hasattr(state, "_fields"):
            return type(state)(*parts)
        return tuple(parts) if isinstance(state, tuple) else parts
    return state
