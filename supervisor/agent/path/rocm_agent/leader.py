"""Decides which of several optimizers counts the steps: the first that stepped, until it stops stepping.

A GAN has two optimizers, and both step once per step of the training.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

SILENT_STEPS = 50
SILENT_NS = 20_000_000_000


class Leader:
    """The optimizer that counts, held weakly."""

    def __init__(self) -> None:
        self._leader: Callable[[], Any] = lambda: None
        self._leader_ns = 0
        self._others = 0

    def takes_lead(self, optimizer: Any, now_ns: int) -> bool:
        """Whether `optimizer`, which has just stepped, leads; it replaces a leader that stopped stepping or is gone."""
        leader = self._leader()
        if leader is not optimizer:
            self._others += 1
            if leader is not None and self._others <= SILENT_STEPS and now_ns - self._leader_ns < SILENT_NS:
                return False
            self._leader = weakref.ref(optimizer)
        self.stepped(now_ns)
        return True

    def stepped(self, now_ns: int) -> None:
        """Note that the leader has stepped, where its steps are not asked about one by one."""
        self._leader_ns, self._others = now_ns, 0

    def begin_with(self, optimizer: Any, now_ns: int) -> None:
        """Have `optimizer` lead, which led before this process began."""
        self._leader = weakref.ref(optimizer)
        self.stepped(now_ns)

    def hand_over(self, optimizer: Any, other: Any) -> None:
        """Have `other` lead where `optimizer` does: it steps within the other from now on."""
        if self._leader() is optimizer:
            self._leader = weakref.ref(other)
