"""Shared memory in which the ranks of one training on one machine show their state, read without locks.

Each value is an aligned 64-bit integer, which is written and read atomically. Rank 0 announces the step at which all
ranks save; each rank shows its step. There are no collective operations: no rank waits for another that does not read
the board.
"""

from __future__ import annotations

import mmap
import os
from typing import Iterator, NamedTuple, Optional

from rocm_agent.blocks import reserve_blocks

NAME = "ranks.bin"
ANNOUNCED, OUTCOME = 0, 1
FIRST_SLOT, SLOT_WORDS = 8, 8
WHO, STEP, REFUSED = 0, 1, 2
STEP_BITS, KIND_BITS, NUMBER_BITS = 44, 4, 16

SNAPSHOT, SAVE, SAVE_AND_STOP = 1, 2, 3
SAVED, CANNOT = 1, 2


class Announced(NamedTuple):
    """An announced save."""

    number: int
    kind: int
    step: int
    """It is made at the first boundary with at least this many steps made."""

    @property
    def encoded(self) -> int:
        """Its encoding on the board."""
        return self.number << (STEP_BITS + KIND_BITS) | self.kind << STEP_BITS | self.step


class Standing(NamedTuple):
    """The step that one rank shows."""

    rank: int
    who: int
    step: int


class Board:
    """The shared values, in a file of the attempt's folder."""

    def __init__(self, folder: str, size: int) -> None:
        """Open the board of `size` ranks; raise OSError where it cannot be opened."""
        count = (FIRST_SLOT + SLOT_WORDS * size) * 8
        file = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            reserve_blocks(file, count)
            self._values = memoryview(mmap.mmap(file, count)).cast("Q")
        finally:
            os.close(file)
        self._size = size

    @property
    def announced(self) -> Announced:
        """The newest announcement; number 0 before the first."""
        value = self._values[ANNOUNCED]
        kind = value >> STEP_BITS & (1 << KIND_BITS) - 1
        return Announced(value >> STEP_BITS + KIND_BITS, kind, value & (1 << STEP_BITS) - 1)

    def announce(self, kind: int, step: int) -> Announced:
        """Announce a save under the next number."""
        number = self.announced.number % ((1 << NUMBER_BITS) - 1) + 1
        made = Announced(number, kind, step)
        self._values[ANNOUNCED] = made.encoded
        return made

    def repeat(self, announced: Announced) -> None:
        """Show what was announced on another machine."""
        self._values[ANNOUNCED] = announced.encoded

    def settle(self, number: int, outcome: int) -> None:
        """Show the outcome of an announced save."""
        self._values[OUTCOME] = number << 8 | outcome

    def outcome(self, number: int) -> Optional[int]:
        """Return the outcome of an announced save, None as long as it is not known."""
        value = self._values[OUTCOME]
        return value & 0xFF if value >> 8 == number else None

    def stand(self, rank: int, who: int, step: int) -> None:
        """Show a rank's step."""
        slot = FIRST_SLOT + SLOT_WORDS * rank
        self._values[slot + STEP] = step
        self._values[slot + WHO] = who

    def standings(self) -> Iterator[Standing]:
        """Return the step of every rank; `who` is 0 for a rank that has not joined."""
        for rank in range(self._size):
            slot = FIRST_SLOT + SLOT_WORDS * rank
            yield Standing(rank, self._values[slot + WHO], self._values[slot + STEP])

    def refuse(self, rank: int, number: int) -> None:
        """Show that a rank does not take part in an announced save."""
        self._values[FIRST_SLOT + SLOT_WORDS * rank + REFUSED] = number

    def refused(self, rank: int, number: int) -> bool:
        """Whether a rank does not take part in it."""
        return self._values[FIRST_SLOT + SLOT_WORDS * rank + REFUSED] == number
