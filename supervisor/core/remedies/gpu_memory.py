"""Whether memory of an ended process is still allocated on a GPU.

The kernel frees a process's GPU memory only once the driver has torn its queues down, which a faulty GPU does late or
never; an attempt launched before that runs out of memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.core.units import GB

HELD_BYTES = 256 << 20
"""Growth since the launch that does not count as held by the ended process: a desktop's usage varies as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Memory in use on one GPU at one time, by any process."""

    gpu: str
    used_bytes: int


def still_held(before: Iterable[GpuMemory], now: Iterable[GpuMemory]) -> tuple[GpuMemory, ...]:
    """Return by how much the memory in use on each GPU has grown; a GPU unknown at either time is left out."""
    known = {gpu_memory.gpu: gpu_memory.used_bytes for gpu_memory in before}
    grown = (
        GpuMemory(gpu=gpu_memory.gpu, used_bytes=gpu_memory.used_bytes - known[gpu_memory.gpu])
        for gpu_memory in now
        if gpu_memory.gpu in known
    )
    return tuple(gpu_memory for gpu_memory in grown if gpu_memory.used_bytes > HELD_BYTES)


def held_words(held: Iterable[GpuMemory]) -> str:
    """Return how much is held on which GPU, as text."""
    return ", ".join(f"{gpu_memory.used_bytes / GB:.1f} GB of {gpu_memory.gpu}" for gpu_memory in held)
