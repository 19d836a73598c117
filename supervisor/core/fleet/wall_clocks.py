"""How far the leader's wall clock is ahead of those that stamp what the program saves: such files seem to be older.

What was saved before the training began is another's. The begin is read from the leader's clock, while a file has its
time of the machine that writes it, or of the one that keeps it. So the begin is taken by the earliest of the three.
"""

from __future__ import annotations

AHEAD_MAX_S = 86_400.0
"""A clock further behind was never set; by it all that earlier trainings have saved would be of this one."""
STEADY_S = 5.0
"""A clock that is read again differs by less; the begin stays the same then, and with it the record."""


class WallClocks:
    """Of one leader; a leader that comes after it finds the begin in the record, by the earliest clock already."""

    def __init__(self) -> None:
        self._nodes: dict[str, float] = {}
        self._storage_s = 0.0
        self.is_begin_recorded = False
        """Whether the begin was found in the record."""

    def note_node(self, node: str, behind_s: float) -> None:
        """Take in how far the clock of a node is behind the leader's; below 0 it is ahead."""
        self._nodes[node] = behind_s

    def note_storage(self, behind_s: float) -> None:
        """Take in the same of the file system of the leader's record."""
        if abs(behind_s - self._storage_s) >= STEADY_S:
            self._storage_s = behind_s

    def note_set_back(self, by_s: float) -> None:
        """Take in that the leader's clock was set back."""
        self._nodes = {node: behind_s - by_s for node, behind_s in self._nodes.items()}
        self._storage_s -= by_s

    def find_begin(self, began_unix_s: float, node: str | None) -> float:
        """Return when the training began by the earliest clock; `node` is that of rank 0, which saves."""
        if self.is_begin_recorded:
            return began_unix_s
        behind = (self._storage_s, 0.0 if node is None else self._nodes.get(node, 0.0))
        return began_unix_s - max(0.0, *(behind_s for behind_s in behind if behind_s <= AHEAD_MAX_S))
