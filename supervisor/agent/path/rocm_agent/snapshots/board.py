"""Shared memory in which the ranks of one training on one machine show their state, read without locks.

Each word is 64 bits wide and aligned, and is written and read as one: nobody sees half of it. Rank 0 announces at
which step all are to save; each rank shows where it stands. Nothing here is a collective operation, and no rank is held
up by another that does not look.
"""

from __future__ import annotations

import mmap
import os
from typing import Iterator, NamedTuple, Optional

NAME = "ranks.bin"
ANNOUNCED, OUTCOME = 0, 1
FIRST_SLOT, SLOT_WORDS = 8, 8
WHO, STEP, REFUSED = 0, 1, 2
STEP_BITS, KIND_BITS, NUMBER_BITS = 44, 4, 16

SNAPSHOT, SAVE, SAVE_AND_STOP = 1, 2, 3
SAVED, CANNOT = 1, 2


class Announced(NamedTuple):
    """A save that is to come."""

    number: int
    kind: int
    step: int
    """It is made at the first boundary at which so many steps are made, or more."""

    @property
    def word(self) -> int:
        """As it stands on the board."""
        return self.number << (STEP_BITS + KIND_BITS) | self.kind << STEP_BITS | self.step


class Standing(NamedTuple):
    """Where one rank says that it stands."""

    rank: int
    who: int
    step: int


class Board:
    """The words, in a file of the attempt's folder."""

    def __init__(self, folder: str, size: int) -> None:
        """Open the board of `size` ranks; raise OSError where it cannot be had."""
        count = (FIRST_SLOT + SLOT_WORDS * size) * 8
        file = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(file, 0, count)  # a write into a hole of a full disk would be SIGBUS
            self._words = memoryview(mmap.mmap(file, count)).cast("Q")
        finally:
            os.close(file)
        self._size = size

    @property
    def announced(self) -> Announced:
        """What was announced last; number 0 before anything was."""
        word = self._words[ANNOUNCED]
        kind = word >> STEP_BITS & (1 << KIND_BITS) - 1
        return Announced(word >> STEP_BITS + KIND_BITS, kind, word & (1 << STEP_BITS) - 1)

    def announce(self, kind: int, step: int) -> Announced:
        """Announce a save under the next number."""
        number = self.announced.number % ((1 << NUMBER_BITS) - 1) + 1
        made = Announced(number, kind, step)
        self._words[ANNOUNCED] = made.word
        return made

    def settle(self, number: int, outcome: int) -> None:
        """Show what came of an announced save."""
        self._words[OUTCOME] = number << 8 | outcome

    def outcome(self, number: int) -> Optional[int]:
        """Return what came of an announced save, None as long as nobody knows."""
        word = self._words[OUTCOME]
        return word & 0xFF if word >> 8 == number else None

    def stand(self, rank: int, who: int, step: int) -> None:
        """Show where a rank stands."""
        slot = FIRST_SLOT + SLOT_WORDS * rank
        self._words[slot + STEP] = step
        self._words[slot + WHO] = who

    def standings(self) -> Iterator[Standing]:
        """Return where every rank stands; `who` is 0 of one that has not come forward."""
        for rank in range(self._size):
            slot = FIRST_SLOT + SLOT_WORDS * rank
            yield Standing(rank, self._words[slot + WHO], self._words[slot + STEP])

    def refuse(self, rank: int, number: int) -> None:
        """Show that a rank has no part in an announced save."""
        self._words[FIRST_SLOT + SLOT_WORDS * rank + REFUSED] = number

    def refused(self, rank: int, number: int) -> bool:
        """Whether a rank has no part in it."""
        return self._words[FIRST_SLOT + SLOT_WORDS * rank + REFUSED] == number
