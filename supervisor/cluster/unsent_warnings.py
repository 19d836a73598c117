"""What rules have warned of on this node and its leader is not known to have: each beat repeats the oldest of it.

A leader says in each answer which it has. One that says nothing of it is of an earlier version, and is sent none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from supervisor.core.fleet import messages as ms

KEPT = 64
"""While no leader is there; of more the oldest stand in this node's record alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """One warning, and when it was given on this node's monotonic clock."""

    number: int
    rule: str
    text: str
    at_s: float
    launch: str


class UnsentWarnings:
    """Of one daemon; used by the node's thread alone."""

    def __init__(self) -> None:
        self._waiting: deque[Warned] = deque(maxlen=KEPT)
        self._count = 0
        self._are_wanted = False
        """Whether the leader of the present link takes warnings."""

    def add(self, rule: str, text: str, at_s: float, launch: str) -> None:
        """Keep a warning until the leader has it."""
        self._count += 1
        self._waiting.append(Warned(number=self._count, rule=rule, text=text, at_s=at_s, launch=launch))

    def begin_link(self) -> None:
        """Take in that another link has been made, to a leader that may be of another version."""
        self._are_wanted = False

    def take_answer(self, warned: int | None) -> None:
        """Take in which warning the leader has as the newest; None of one that takes none."""
        self._are_wanted = warned is not None
        while warned is not None and self._waiting and self._waiting[0].number <= warned:
            self._waiting.popleft()

    def list_next(self, now_s: float) -> tuple[ms.NodeWarning, ...]:
        """Return what the next beat carries."""
        if not self._are_wanted:
            return ()
        return tuple(
            ms.NodeWarning(
                number=warned.number,
                rule=warned.rule,
                text=warned.text,
                ago_s=max(0.0, now_s - warned.at_s),
                launch=warned.launch,
            )
            for warned in list(self._waiting)[: ms.WARNINGS_MAX]
        )
