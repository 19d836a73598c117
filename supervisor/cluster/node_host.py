"""What the thread of a node needs of its daemon, and the attempt that a launch became there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.resume import Offer
from supervisor.core.peers import PeerStage, PeerWait
from supervisor.core.scale import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The attempt that a launch became on this node."""

    epoch: Epoch
    folder: Path
    shim_pid: int


class Host(Protocol):
    """The daemon of the node, as this thread needs it; every method may be called from here and returns at once."""

    def launch(self, order: ms.Launch) -> None:
        """Start the ranks; answered by `Node.launched`, or `Node.ended` (`node.py`)."""
        ...

    def stop(self, running: Running, reason: str) -> None:
        """Send SIGKILL to every process of the attempt."""
        ...

    def cancel(self, epoch: Epoch) -> bool:
        """Take an order back; return False where it is becoming an attempt, so that an answer is still to come."""
        ...

    def is_alive(self, running: Running) -> bool:
        """Whether a process of the attempt may still run."""
        ...

    def describe_waits(self, running: Running) -> str | None:
        """Return what its processes wait for in the kernel; called in a thread of its own."""
        ...

    def read_place(self, running: Running) -> Place | None:
        """Return how far the training has come by its rank 0; None where that is not here, or has made no step."""
        ...

    def read_storage_wait(self, running: Running) -> str | None:
        """Return which file system its ranks are seen to wait for, and who; None where they do not."""
        ...

    def read_stage(self, running: Running) -> PeerStage | None:
        """Return the stage of the training by its rank 0; None where that is not here, or has reported none."""
        ...

    def note_peer_stage(self, running: Running, stage: PeerStage) -> None:
        """Take in the stage of rank 0 on another node; called with each answer of the leader that knows it."""
        ...

    def note_peer_waits(self, running: Running, waits: tuple[PeerWait, ...]) -> None:
        """Take in which other nodes' ranks wait for a file system; called with each answer of the leader while any do.

        And once more when none does any longer.
        """
        ...

    def take_evidence(self, running: Running, incident: str, limit_s: float) -> Path:
        """Collect evidence within the limit and return its folder; called in a thread of its own."""
        ...

    def find_resume(self, asked: ms.FindResume) -> tuple[Offer, ...]:
        """Return what this node could resume from, its share of the newest proven; called in a thread of its own.

        Raises OSError where the node cannot look.
        """
        ...

    def leave(self, reason: str, *, finished: bool) -> None:
        """Save, end the training and then this daemon; `finished`: by itself, on all nodes."""
        ...

    def give_up(self, reason: str) -> None:
        """End this daemon, of which no leader wants anything, with a status that says so."""
        ...
