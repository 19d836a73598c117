"""Whether a card still holds memory of a process that is dead; it reads no card and waits for nothing itself.

The kernel frees a process's memory on a card only once the driver has torn its queues down, which a card in trouble
does late or never; an attempt launched before that runs out of memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HELD_BYTES = 256 << 20
"""What is taken beyond the time before the launch, and yet no sign of the dead: a desktop takes and gives as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """What was taken of one card's memory at one time, whoever had it."""

    gpu: str
    used_bytes: int


def still_held(before: Iterable[GpuMemory], now: Iterable[GpuMemory]) -> tuple[GpuMemory, ...]:
    """Return by how much more is taken of each card now than before; a card unknown at either time is left out."""
    known = {gpu_memory.gpu: gpu_memory.used_bytes for gpu_memory in before}
    grown = (
        GpuMemory(gpu=gpu_memory.gpu, used_bytes=gpu_memory.used_bytes - known[gpu_memory.gpu])
        for gpu_memory in now
        if gpu_memory.gpu in known
    )
    return tuple(gpu_memory for gpu_memory in grown if gpu_memory.used_bytes > HELD_BYTES)


def held_words(held: Iterable[GpuMemory]) -> str:
    """Return in words how much is held where."""
    return ", ".join(f"{gpu_memory.used_bytes / 1e9:.1f} GB of {gpu_memory.gpu}" for gpu_memory in held)
