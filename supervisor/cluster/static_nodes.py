"""Nodes that are started from outside: by hand or by a start-up script; no more can be had."""

from __future__ import annotations

from collections.abc import Sequence


class StaticNodes:
    """Implements `cluster.leader.Engine`: a spare is a node that has joined, and there are no others."""

    fence = 0

    def requeue(self, excluded: Sequence[str], reason: str) -> None:
        """Refuse."""
        raise ValueError(f"no engine to requeue at, without {', '.join(excluded)}: {reason}")

    def tick(self) -> None:
        """Do nothing."""
