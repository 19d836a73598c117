"""The mean of gradients over the ranks of one machine through its memory, as a communication hook of DDP.

Each rank has a slab of shared, pinned memory. A bucket of gradients is copied there on a stream of its own while the
backward pass goes on; once every rank has said that its own lies ready, each copies the others' to its GPU and adds
them there, in the order of the ranks, so that all have the same sum. A thread waits, nothing spins, and the host
computes nothing. With two ranks the result is that of gloo to the bit: a gradient is divided before it is added.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading
from contextlib import suppress
from typing import Any, Callable, List, Optional

from rocm_agent import boot
from rocm_agent.snapshots.copying import copy_all

from . import links

ALIGNED_BYTES = 4096
BUCKETS = 256
"""Parts of a step that have room besides their bytes."""
BUFFERS_BYTES = 4 << 20
"""Of a model's buffers, such as the statistics of BatchNorm; those of more go by gloo."""
SLABS = 2
"""Two in turn: when a rank writes into one again, every other has begun the step in between, and so has read it."""
MEMORY_SHARE = 0.5
"""Of the memory that the machine has left, at most this much is taken by the slabs of all ranks together."""


begun = 0
"""Means of this process that were begun, of all models."""


class HostMean:
    """The communication hook of one model: `hook` is given to DDP's `register_comm_hook`."""

    def __init__(self, torch: Any, found: links.Links, size: int, parameters: List[Any], wire: Optional[Any]) -> None:
        """`size`: bytes of one slab; `wire`: the type in which gradients are copied, None for their own."""
        device = parameters[0].device
        self._torch, self._links, self._device, self._wire = torch, found, device, wire
        self._ranks = len(found.slabs)
        self._size = size
        self._maps = [mmap.mmap(descriptor, _file_bytes(size)) for descriptor in found.slabs]
        for descriptor in found.slabs:
            os.close(descriptor)
        self._slabs = [torch.frombuffer(content, dtype=torch.uint8) for content in self._maps]
        self._cuda = device.type == "cuda"
        if self._cuda:
            for slab in self._slabs:
                _pin(torch, slab)
            self._up, self._down = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._number = 0
        self._slab = 0
        self._offset = 0
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._failed: Optional[BaseException] = None
        threading.Thread(target=self._serve, name="ranks", daemon=True).start()

    def hook(self, _state: object, bucket: Any) -> Any:
        """Begin the mean of a bucket; return a future of it."""
        torch, gradient = self._torch, bucket.buffer()
        future = torch.futures.Future(devices=[self._device]) if self._cuda else torch.futures.Future()
        sent, place, event = self._begin_copy(gradient)
        self._waiting.put((future, gradient, sent, place, event))
        if bucket.is_last():
            self._slab, self._offset = (self._slab + 1) % SLABS, 0
        return future

    def _begin_copy(self, gradient: Any) -> Any:
        """Divide the gradient and begin its copy into the slab; return it as sent, its place and the copy's event."""
        torch = self._torch
        size = gradient.numel() * torch.empty((), dtype=self._wire or gradient.dtype).element_size()
        offset = self._slab * self._size + self._offset
        if self._offset + size > self._size:
            raise links.LinkError("the gradients of a step exceed the %d bytes that the model has" % self._size)
        self._offset += _aligned(size)
        place = (self._number, offset, size)
        self._number += 1
        global begun
        begun += 1
        if not self._cuda:
            return self._divided(gradient), place, None
        event = torch.cuda.Event(blocking=True)
        self._up.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._up):
            sent = self._divided(gradient)
            self._part(self._links.rank, place, sent.dtype).copy_(sent, non_blocking=True)
            event.record(self._up)
        sent.record_stream(self._down)  # which reads it later, when this stream may have given its memory away
        return sent, place, event

    def _divided(self, gradient: Any) -> Any:
        gradient.div_(self._ranks)
        return gradient if self._wire is None else gradient.to(self._wire)

    def _part(self, rank: int, place: Any, dtype: Any) -> Any:
        """Return a rank's part of a mean as a tensor in its slab."""
        _, offset, size = place
        return self._slabs[rank][offset : offset + size].view(dtype)

    def broadcast(self, tensors: List[Any], source: int) -> bool:
        """Copy the source's tensors to those of all other ranks and wait for it; return False where they are too many.

        No mean is under way: DDP calls this before a forward pass, when those of the last backward pass are done.
        """
        if bytes_of(tensors) > BUFFERS_BYTES:
            return False
        for kind in sorted({tensor.dtype for tensor in tensors}, key=str):
            some = [tensor for tensor in tensors if tensor.dtype == kind]
            place = (self._number, SLABS * self._size, bytes_of(some))
            self._number += 1
            part = self._part(source, place, kind)
            if source == self._links.rank:
                part.copy_(self._torch.cat([tensor.detach().reshape(-1) for tensor in some]))
                self._links.announce(*place)
                self._links.await_others(*place)
            else:
                self._links.await_part(source, *place)
                self._take(part, some, lambda: self._links.tell(source, *place))  # noqa: B023 - called at once
        return True

    def _take(self, part: Any, tensors: List[Any], read: Callable[[], None]) -> None:
        """Copy a slab's part into the tensors; call `read` as soon as the slab may be written again."""
        flat = part.to(self._device, copy=True)  # which is waited for
        read()
        parts = flat.split([tensor.numel() for tensor in tensors])
        copy_all(self._torch, tensors, [values.view(tensor.shape) for tensor, values in zip(tensors, parts)])

    def close(self) -> None:
        """End, once what was begun is done: the model is gone."""
        self._waiting.put(None)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Finish one mean after the other, in the order in which they were begun, which is that of all ranks."""
        while True:
            begun_mean = self._waiting.get()
            if begun_mean is None:
                self._release()
                return
            future, gradient, sent, place, event = begun_mean
            try:
                if self._failed is not None:
                    raise self._failed
                if event is None:
                    self._part(self._links.rank, place, sent.dtype).copy_(sent)
                else:
                    event.synchronize()
                self._links.announce(*place)
                self._links.await_others(*place)
                self._add(future, gradient, sent, place)
            except Exception as error:
                self._failed = error
                future.set_exception(error)

    def _release(self) -> None:
        self._links.close()
        if not self._cuda:
            return
        self._down.synchronize()
        for slab in self._slabs:
            with suppress(AttributeError, RuntimeError):
                self._torch.cuda.cudart().cudaHostUnregister(slab.data_ptr())

    def _add(self, future: Any, gradient: Any, sent: Any, place: Any) -> None:
        torch = self._torch
        if not self._cuda:
            future.set_result(self._sum(gradient, sent, place, lambda part: part))
            return
        self._down.wait_stream(self._up)
        with torch.cuda.stream(self._down):
            added = self._sum(gradient, sent, place, lambda part: part.to(self._device, non_blocking=True))
            future.set_result(added)

    def _sum(self, gradient: Any, sent: Any, place: Any, fetch: Callable[[Any], Any]) -> Any:
        """Write the sum of all parts, added in the order of the ranks, into the gradient."""
        parts = [
            sent if rank == self._links.rank else fetch(self._part(rank, place, sent.dtype))
            for rank in range(self._ranks)
        ]
        total = parts[0].to(gradient.dtype)
        for part in parts[1:]:
            total = total + part
        return gradient.copy_(total)


def prepare(torch: Any, dist: Any, parameters: List[Any], wire: Optional[Any]) -> HostMean:
    """Connect all ranks of the default group and return the hook. Every rank calls this, or none.

    Raises LinkError on every rank, with the same reason, where it cannot be done on one.
    """

    def exchange(own: Any) -> List[Any]:
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, own)
        return found

    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = sum(_aligned(item.numel() * item.element_size()) for item in parameters) + BUCKETS * ALIGNED_BYTES
    problem = _find_problem(parameters, _file_bytes(size) * ranks)
    listener, slab = None, -1
    try:
        listener, slab = links.Listener(), os.memfd_create("rocm-ranks")
        os.ftruncate(slab, _file_bytes(size))
    except OSError as error:
        problem = problem or str(error)
    try:
        found = exchange((problem, boot.read_boot_id(), None if listener is None else listener.path))
        _raise_first([problem for problem, _, _ in found])
        if len({machine for _, machine, _ in found}) > 1:
            raise links.LinkError("the ranks run on several machines")
        made = None
        try:
            made = HostMean(torch, listener.connect(rank, [path for *_, path in found], slab), size, parameters, wire)
        except Exception as error:
            problem = "%s: %s" % (type(error).__name__, error)
        _raise_first(exchange(problem))
    finally:
        if listener is not None:
            listener.close()
    return made


def bytes_of(tensors: List[Any]) -> int:
    """Return what the elements of these tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _file_bytes(size: int) -> int:
    return SLABS * size + BUFFERS_BYTES


def _aligned(size: int) -> int:
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES


def _raise_first(problems: List[Optional[str]]) -> None:
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise links.LinkError("rank %d: %s" % (rank, problem))


def _find_problem(parameters: List[Any], needed_bytes: int) -> Optional[str]:
    """Return why the gradients of these parameters cannot be averaged through the host's memory; None: they can."""
    if len({parameter.device for parameter in parameters}) > 1:
        return "its parameters lie on several devices"
    left_bytes = _available_bytes()
    if needed_bytes > MEMORY_SHARE * left_bytes:
        return "it takes %d MiB of the host's memory, of which %d MiB are left" % (needed_bytes >> 20, left_bytes >> 20)
    return None


def _available_bytes() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _pin(torch: Any, slab: Any) -> None:
    """Have the driver reach the slab by itself; where it refuses, copies are slower, and still right."""
    with suppress(AttributeError, RuntimeError):
        torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), slab.numel(), 0)
