"""Reads numbers out of tensors for the record, without making the training wait for its GPU."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import events
from .fence import fenced

MEMORY_EVERY_NS = 1_000_000_000
EAGER_EVERY_NS = 1_000_000_000
REPORT_EVERY_NS = 30_000_000_000
REPORT_AGAIN_NS = 2_000_000_000

FIRST = 16
"""Steps of a process of which every number is recorded."""

Pair = Tuple[Optional[float], Optional[float]]


def is_scalar(value: Any) -> bool:
    """Whether `value` is a tensor of one element."""
    return hasattr(value, "numel") and value.numel() == 1


def number(value: Any) -> Optional[float]:
    """Return a number or a tensor of one element as a float, None where that would wait for a GPU or makes no sense."""
    if value is None or isinstance(value, (int, float)):
        return None if value is None else float(value)
    if hasattr(value, "numel"):
        return float(value.item()) if value.numel() == 1 and not value.is_cuda else None
    return float(value)


def take_local(value: Any) -> Any:
    """Return what this rank holds of a number that is spread over ranks (FSDP2, tensor parallelism), if that is all.

    None where it is not, as a norm of gradients under FSDP2: it would take an operation of all ranks, and which of them
    reads a number in which step depends on when its GPU was done.
    """
    if not hasattr(value, "placements") or not hasattr(value, "to_local"):
        return value
    return value.detach().to_local() if all(item.is_replicate() for item in value.placements) else None


class LateScalars:
    """A loss and a gradient norm, read at once from the CPU and one step late from a GPU.

    The copy to pinned memory joins the GPU's queue and is picked up when its event has passed, so a loss in the
    record of step n is that of step n - 1, or of the newest step whose copy had arrived by then.

    The first FIRST numbers are all recorded, in their order, however far the host is ahead of the GPU: by them two
    starts from the same snapshot are compared, of which one may be as far ahead as the other is not.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._free: List[_Copy] = []
        self._under_way: List[_Copy] = []
        """The oldest first."""
        self._begun = 0

    def exchange(self, loss: Any, grad_norm: Any) -> Pair:
        """Take this step's tensors (or floats, or None) and return the numbers that can be had now."""
        on_gpu = getattr(loss, "is_cuda", False) or getattr(grad_norm, "is_cuda", False)
        if not on_gpu and not self._under_way:
            return (loss if type(loss) is float else number(loss), None if grad_norm is None else number(grad_norm))
        if type(loss) is float:
            return (loss, self.exchange(None, grad_norm)[1])
        if self._torch.cuda.is_current_stream_capturing():
            return (None, None)  # asking an event would break the capture
        arrived = self._take_arrived()
        if not self._under_way or self._begun < FIRST:
            copy = self._free.pop() if self._free else _Copy(self._torch)
            if copy.begin(loss, grad_norm):
                self._begun += 1
                self._under_way.append(copy)
            else:
                self._free.append(copy)
        return arrived

    def _take_arrived(self) -> Pair:
        """Return the oldest numbers, if they have arrived; after the first ones the newest that have."""
        found: Pair = (None, None)
        while self._under_way and self._under_way[0].has_arrived():
            copy = self._under_way.pop(0)
            self._free.append(copy)
            found = copy.read()
            if self._begun <= FIRST:
                break
        return found


class _Copy:
    """Two scalars on their way from a GPU."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._event: Any = None
        self._pinned: List[Any] = [None, None]
        self._copied: Tuple[bool, bool] = (False, False)

    def begin(self, loss: Any, grad_norm: Any) -> bool:
        """Begin the copy; return whether either is a scalar."""
        self._copied = (self._start_copy(0, loss), self._start_copy(1, grad_norm))
        if not any(self._copied):
            return False
        self._event = self._event or self._torch.cuda.Event()
        self._event.record()
        return True

    def has_arrived(self) -> bool:
        """Whether the GPU has come to the copy."""
        return bool(self._event.query())

    def read(self) -> Pair:
        """Return what has arrived."""
        loss, grad_norm = self._copied
        return (float(self._pinned[0]) if loss else None, float(self._pinned[1]) if grad_norm else None)

    def _start_copy(self, place: int, value: Any) -> bool:
        """Begin the copy of a scalar; its type is kept, since a conversion would be a kernel more at every step."""
        value = take_local(value)
        if not is_scalar(value):
            return False
        pinned = self._pinned[place]
        if pinned is None or pinned.dtype != value.dtype:
            pinned = self._pinned[place] = self._torch.empty(1, dtype=value.dtype, pin_memory=True)
        pinned.copy_(value.detach().view(1), non_blocking=True)
        return True


class LateArray:
    """A number of JAX, which computes in the background, read once it is there: at the next step or a later one."""

    def __init__(self) -> None:
        self._held: Any = None

    def exchange(self, array: Any) -> Optional[float]:
        """Take this step's array of one element (or None) and return the number of the newest that has arrived."""
        held, arrived = self._held, None
        if held is not None and held.is_deleted():  # a later call of the training was given its memory
            held = None
        if held is not None and held.is_ready():
            held, arrived = None, float(held)
        self._held = array if held is None else held
        return arrived


class EagerTensor:
    """A number of TensorFlow, read at once from the CPU and at most once a second from a GPU, which it waits for."""

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self._clock = clock
        self._next_ns = 0

    def read(self, tensor: Any) -> Optional[float]:
        """Return the number in a tensor of one element; None where it is not read now, or is not computed eagerly."""
        device = tensor.device
        if not isinstance(device, str) or not callable(getattr(tensor, "numpy", None)):
            return None
        if "CPU" not in device:
            now = self._clock()
            if now < self._next_ns:
                return None
            self._next_ns = now + EAGER_EVERY_NS
        return float(tensor.numpy())


class GpuMemory:
    """Memory that the allocator holds on this process's GPUs, asked at most once a second.

    The allocator's other counters are reported as an event of each GPU that it holds memory on, as of a model that is
    split over several: each half minute, and sooner where it had to try again.
    """

    def __init__(self, torch: Any, clock: Callable[[], int] = monotonic_ns) -> None:
        self._cuda = torch.cuda
        self._clock = clock
        self._next_ns = 0
        self._bytes: Optional[int] = None
        self._reported: Dict[int, Tuple[int, int, int, int]] = {}
        """By GPU: when it was last reported, its bytes, retries and failures."""

    def read(self, now_ns: Optional[int] = None) -> Optional[int]:
        """Return bytes of the GPU with most, None where none is in use; `now_ns`: for a caller that read the clock."""
        now = self._clock() if now_ns is None else now_ns
        if now >= self._next_ns:
            self._next_ns = now + MEMORY_EVERY_NS
            self._bytes = self._read_allocator(now) if self._cuda.is_initialized() else None
        return self._bytes

    def _read_allocator(self, now: int) -> int:
        most = 0
        for gpu in range(self._cuda.device_count()):
            stats = self._cuda.memory_stats(gpu)
            reserved = int(stats.get("reserved_bytes.all.current", 0))
            counts = (reserved, int(stats.get("num_alloc_retries", 0)), int(stats.get("num_ooms", 0)))
            if (reserved or gpu in self._reported) and self._is_due(gpu, counts, now):
                self._reported[gpu] = (now, *counts)
                self._report_allocator(gpu, stats, counts)
            most = max(most, reserved)
        return most

    def _is_due(self, gpu: int, counts: Tuple[int, int, int], now: int) -> bool:
        if gpu not in self._reported:
            return True
        at, *before = self._reported[gpu]
        changed = list(counts[1:]) != before[1:] or abs(counts[0] - before[0]) * 100 > max(counts[0], before[0])
        return now - at >= (REPORT_AGAIN_NS if changed else REPORT_EVERY_NS)

    @fenced
    def _report_allocator(self, gpu: int, stats: Any, counts: Tuple[int, int, int]) -> None:
        events.write(
            "allocator",
            gpu_index=gpu,
            reserved_bytes=counts[0],
            allocated_bytes=int(stats.get("allocated_bytes.all.current", 0)),
            inactive_split_bytes=int(stats.get("inactive_split_bytes.all.current", 0)),
            retries=counts[1],
            ooms=counts[2],
            total_bytes=self._may_take_bytes(gpu),
        )

    def _may_take_bytes(self, gpu: int) -> int:
        """Return the GPU's memory, or the share of it that the program allows itself: full is full."""
        total_bytes = int(self._cuda.get_device_properties(gpu).total_memory)
        share = getattr(self._cuda, "get_per_process_memory_fraction", None)  # torch 1.13 keeps it to itself
        return total_bytes if share is None else int(total_bytes * share(gpu))
