"""What torch's message says of the memory of a GPU on which an allocation failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"(\d{1,15}(?:\.\d{1,4})?) (bytes|KiB|MiB|GiB)"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated")
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")
ROUNDED = 0.02
"""Of a size: what is written with two places after the point in the next larger unit differs by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """An allocation that failed, and what the GPU had then."""

    tried_bytes: int
    free_bytes: int
    """Of the GPU, as its driver counts."""
    unused_bytes: int
    """What the allocator held of it and no tensor had."""
    capacity_bytes: int

    @property
    def is_beyond_allocator(self) -> bool:
        """Whether all that was free or unused, joined to one block, would have been too small."""
        return self.tried_bytes * (1 - ROUNDED) > (self.free_bytes + self.unused_bytes) * (1 + ROUNDED)


def read_shortage(message: str) -> Shortage | None:
    """Return what a message of torch names, 1.13 or later; None where a figure is missing, as on other frameworks."""
    tried, capacity, free = (_read_size(pattern, message) for pattern in (_TRIED, _CAPACITY, _FREE))
    unused = _read_size(_UNUSED, message)
    if unused is None:
        reserved, allocated = _read_size(_RESERVED, message), _read_size(_ALLOCATED, message)
        unused = None if reserved is None or allocated is None else max(0, reserved - allocated)
    if tried is None or capacity is None or free is None or unused is None:
        return None
    return Shortage(tried_bytes=tried, free_bytes=free, unused_bytes=unused, capacity_bytes=capacity)


def _read_size(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    if found is None:
        return None
    number, unit = (text for text in found.groups() if text is not None)
    return round(float(number) * UNITS[unit])
