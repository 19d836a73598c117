"""What is collected of each rank after a fault, before anything is stopped."""

from __future__ import annotations

from dataclasses import dataclass

UNREAD_END = "how is not known: its launcher took its exit status, and has not reported it"
"""The exception of a rank of which only that it ended is certain, and when."""
STATUS_END = "exited with status"
"""How the exception of a rank begins that reported none."""
DAEMON_ENDED = "its node's daemon ended, and with it its ranks"
DECISIVE = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS"})
"""Signals that no lost peer makes a rank end by: it ended first, whatever waits meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """One rank as its node found it; None where the node could not tell."""

    node: str
    rank: int
    reachable: bool = True
    """Whether its node answered in the time for evidence."""
    fault: str | None = None
    """Class of a fault that the node's kernel log or GPU reported (`gpu_hang`, `gpu_lost`, `ecc`)."""
    killed_by: str | None = None
    """Signal that ended the rank before the supervisor sent any, such as SIGSEGV."""
    exception: str | None = None
    """Type and place of the exception that ended it."""
    communication: bool = False
    """Whether that exception only reports a peer that is gone (a reset connection, a communicator that was aborted)."""
    ended_at_s: float | None = None
    """When it ended, on the leader's clock."""
    offset_error_s: float = 0.0
    """How far `ended_at_s` can be off."""
    process_state: str | None = None
    """State in /proc/PID/stat: T is stopped; D waits in the kernel, and has not run while evidence was taken."""
    group: str = "world"
    """The innermost process group that the rank waits in."""
    sequence: int | None = None
    """Number of the last collective of all ranks that it has begun, as its process group counts; not while it grows."""
    collective: int | None = None
    """How many steps it has recorded, each of which is at least one collective of `group`."""
    in_collective: bool | None = None
    stack: str | None = None
    """Its innermost Python frames, without line numbers."""
    slow_windows: int = 0
    """Of the last windows of measured steps, in how many it was slower than its peers by more than the noise."""

    @property
    def is_comparable(self) -> bool:
        """Whether it is known how the rank ended, or where it stands among its peers."""
        ended = self.killed_by or self.exception or self.fault
        places = (self.sequence, self.collective, self.in_collective, self.stack)
        return ended is not None or any(place is not None for place in places)

    @property
    def ended_by_itself(self) -> bool:
        """Whether it ended in a way that no lost peer brings about, whatever the other ranks did."""
        reported = self.exception is not None and not self.exception.startswith(STATUS_END)
        return self.killed_by in DECISIVE or (self.killed_by is None and reported and self.exception != UNREAD_END)

    @property
    def ended_from_outside(self) -> bool:
        """Whether it ended, or its node, by what the state that it had resumed from cannot bring about."""
        lost = not self.reachable or self.fault is not None or self.exception == DAEMON_ENDED
        return lost or self.killed_by == "SIGKILL" or self.process_state == "T"
