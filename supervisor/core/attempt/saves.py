"""What is known of the checkpoints of an attempt: what it saved, how that was proven, and what cannot be seen of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import AFTER_FAULT, Checkpoint
from supervisor.core.foreign_values import STEP_MAX, as_int
from supervisor.core.moments import Moment
from supervisor.core.tuning.start_order import UNUSED

SAVED_KEPT = 200
PROOFS_KEPT = 4
DECIDED = frozenset({UNUSED, AFTER_FAULT})
"""Why a save is not resumed from by a decision, and not by what was found in it."""


@dataclass(slots=True, kw_only=True)
class Saves:
    """Of one attempt, newest last, bounded."""

    closed: tuple[str, ...] = ()
    """What of its checkpoint patterns cannot be looked at, each with what to do about it."""
    folders: tuple[str, ...] = ()
    """Which of its checkpoint patterns are folders, each with what to write."""
    existing: ev.ExistingFound | None = None
    """Checkpoints that lay where it saves when it began from the beginning."""
    not_kept: ev.CheckpointNotKept | None = None
    """The newest checkpoint of which no generation was kept, with the reason."""
    save_requested: bool = False
    """Whether the newest checkpoint was saved on request: the training may have ended because it was asked to."""
    saved: deque[tuple[Moment, int | None]] = field(default_factory=lambda: deque(maxlen=SAVED_KEPT))
    """When the training saved a checkpoint of its own, and how many steps had been made by then."""
    snapshot_step: int | None = None
    """The step of the newest snapshot that the agent took by itself."""
    saving_step: int | None = None
    """The last step that had been made when the training last went to save something."""
    saved_unix_s: float | None = None
    """When the newest checkpoint file that was seen was written."""
    proofs: dict[tuple[str, str], list[Checkpoint]] = field(default_factory=dict)
    """Results of proving the newest checkpoints of each series, in the order in which they were saved."""

    def add(self, event: ev.CheckpointSeen | ev.CheckpointNotKept | ev.CheckpointsClosed | ev.ExistingFound) -> None:
        """Take in what was found where the attempt saves."""
        match event:
            case ev.CheckpointSeen():
                self._add_proof(event.checkpoint)
            case ev.CheckpointNotKept():
                self.not_kept = event
            case ev.CheckpointsClosed():
                self.closed, self.folders = event.closed, event.folders
            case ev.ExistingFound():
                self.existing = event

    def add_report(self, event: ev.AgentReported, last_step: int | None) -> None:
        """Take in that the agent reports a checkpoint; `last_step` is the last that had been made."""
        self.save_requested = event.facts.get("requested") is True
        step = as_int(event.facts.get("step"), maximum=STEP_MAX)
        if self.save_requested:
            return
        if event.facts.get("kind") == "snapshot":
            self.snapshot_step = step
        else:
            self.saved.append((event.at, last_step if step is None else step))

    def _add_proof(self, checkpoint: Checkpoint) -> None:
        if checkpoint.fingerprint.size_bytes:
            self.saved_unix_s = max(self.saved_unix_s or 0.0, checkpoint.saved_unix_s)
        if checkpoint.verdict is None or checkpoint.reason in DECIDED:
            return
        proofs = self.proofs.setdefault(checkpoint.series, [])
        if not any(proof.key == checkpoint.key and proof.verdict is checkpoint.verdict for proof in proofs):
            proofs.append(checkpoint)
            proofs.sort(key=lambda proof: proof.saved_unix_s)
            del proofs[:-PROOFS_KEPT]
