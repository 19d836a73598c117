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
class CardMemory:
    """What was taken of one card's memory at one time, whoever had it."""

    gpu: str
    used_bytes: int


def still_held(before: Iterable[CardMemory], now: Iterable[CardMemory]) -> tuple[CardMemory, ...]:
    """Return by how much more is taken of each card now than before; a card unknown at either time is left out."""
    known = {card_memory.gpu: card_memory.used_bytes for card_memory in before}
    grown = (
        CardMemory(gpu=card_memory.gpu, used_bytes=card_memory.used_bytes - known[card_memory.gpu])
        for card_memory in now
        if card_memory.gpu in known
    )
    return tuple(card_memory for card_memory in grown if card_memory.used_bytes > HELD_BYTES)


def held_words(held: Iterable[CardMemory]) -> str:
    """Return in words how much is held where."""
    return ", ".join(f"{card_memory.used_bytes / 1e9:.1f} GB of {card_memory.gpu}" for card_memory in held)
