"""What a device or a socket of the kernel holds, by hand: bytes to read, nothing (None), or errors to raise."""

from __future__ import annotations

from typing import Generic, TypeVar

Given = TypeVar("Given")


class ListFeed(Generic[Given]):
    """Gives what a test put in, one at a reading, and then has nothing more for now."""

    def __init__(self, items: list[Given | OSError]) -> None:
        self.items, self.closed = items, False

    def fileno(self) -> int:
        return 0

    def read(self) -> Given:
        if not self.items:
            raise BlockingIOError
        item = self.items.pop(0)
        if isinstance(item, OSError):
            raise item
        return item

    def close(self) -> None:
        self.closed = True
