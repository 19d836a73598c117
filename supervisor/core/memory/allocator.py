"""torch's caching allocator, simulated: what it holds of a GPU after a training has taken and returned its blocks.

It follows the rules of `c10/cuda/CUDACachingAllocator.cpp`: small and large blocks in pools of their own, the smallest
free block that is large enough, split where enough is left of it, joined with its free neighbours when it is returned.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

MIB = 1 << 20
UNIT_BYTES = 512
SMALL_BYTES = MIB
"""Up to this size blocks are of the small pool."""
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LEAST_OWN_BYTES = 10 * MIB
"""From this size on a block that finds no room gets a segment of its own size, in units of `ROUND_BYTES`."""
ROUND_BYTES = 2 * MIB


@dataclass(slots=True)
class Block:
    """A part of a segment, by its address; `before` and `after` are those next to it in the segment."""

    size: int
    before: int | None
    after: int | None
    is_small: bool
    is_taken: bool = False


class Allocator:
    """Takes and returns blocks; `reserved_bytes` only grows, as where memory suffices."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._blocks: dict[int, Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        """Sizes and addresses of the free blocks of each pool."""
        self._next_address = 0

    def take(self, wanted_bytes: int) -> int:
        """Return the address of a block of so many bytes."""
        size = max(UNIT_BYTES, -(-wanted_bytes // UNIT_BYTES) * UNIT_BYTES)
        is_small = size <= SMALL_BYTES
        pool = self._free[is_small]
        place = bisect_left(pool, (size, -1))
        address = pool.pop(place)[1] if place < len(pool) else self._reserve(size, is_small=is_small)
        block = self._blocks[address]
        left = block.size - size
        if left >= UNIT_BYTES if is_small else left > SMALL_BYTES:
            rest = address + size
            self._blocks[rest] = Block(left, address, block.after, is_small)
            if block.after is not None:
                self._blocks[block.after].before = rest
            block.size, block.after = size, rest
            insort(pool, (left, rest))
        block.is_taken = True
        return address

    def give_back(self, address: int) -> None:
        """Return a block, which is joined with free ones next to it."""
        block = self._blocks[address]
        block.is_taken = False
        if block.after is not None and not self._blocks[block.after].is_taken:
            self._join(address, block.after, leaves=block.after)
        if block.before is not None and not self._blocks[block.before].is_taken:
            before = block.before
            self._join(before, address, leaves=before)
            address, block = before, self._blocks[before]
        insort(self._free[block.is_small], (block.size, address))

    def _join(self, first: int, second: int, *, leaves: int) -> None:
        """Make one block of two; `leaves` is the one that is in the pool."""
        block, other = self._blocks[first], self._blocks.pop(second)
        pool = self._free[block.is_small]
        size = other.size if leaves == second else block.size
        del pool[bisect_left(pool, (size, leaves))]
        block.size, block.after = block.size + other.size, other.after
        if other.after is not None:
            self._blocks[other.after].before = first

    def _reserve(self, size: int, *, is_small: bool) -> int:
        """Return the address of a new segment, the free block in it."""
        segment = SMALL_SEGMENT_BYTES
        if not is_small:
            segment = LARGE_SEGMENT_BYTES if size < LEAST_OWN_BYTES else -(-size // ROUND_BYTES) * ROUND_BYTES
        address, self._next_address = self._next_address, self._next_address + 2 * segment
        self._blocks[address] = Block(segment, None, None, is_small)
        self.reserved_bytes += segment
        return address
