"""Checkpoint unseen: checkpoints that the daemon may not read, or did not prove. It only warns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, condition
from supervisor.core.history import History

NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUnseen:
    """A folder or file of a checkpoint pattern cannot be read, or unproven checkpoints exist at the start.

    What cannot be read is not absent: no copy is kept or proven, and a retry does not overwrite it.
    """

    name: ClassVar[str] = "checkpoint_unseen"
    group: ClassVar[Group] = "storage"
    enabled: bool = True

    def check(self, history: History) -> RedFlag | None:
        """Flag what cannot be read for as long as that lasts, or what existed at the start."""
        if history.over:
            return None
        if history.closed:
            more = f" and {len(history.closed) - NAMED} more" if len(history.closed) > NAMED else ""
            what = "; ".join(history.closed[:NAMED])
            return self._flag(history, f"checkpoints cannot be read: {what}{more}", history.closed[0], CLOSED)
        existing = history.existing
        if existing is None:
            return None
        text = f"started from the beginning although {existing.count} unproven checkpoints exist"
        if existing.kept:
            text += f"; copies of {existing.kept} are kept in {existing.folder}"
        if existing.left_out:
            text += f"; no copy of {'; '.join(existing.left_out[:NAMED])}"
        return self._flag(history, text, "existing checkpoints", BESIDE)

    def _flag(self, history: History, message: str, subject: str, diagnosis: Diagnosis) -> RedFlag:
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=message,
            subject=subject,
            can_save=True,
            diagnosis=diagnosis,
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return the condition as a gauge."""
        return (condition(self.name, "checkpoints that the daemon may not read", self.check(history)),)


CLOSED = Diagnosis(
    causes=(
        "a umask of 077, a directory of mode 0700, or a home directory closed to the daemon's group",
        "the daemon's service hides the folder (ProtectHome, InaccessiblePaths)",
    ),
    advice=("open the folder to the daemon's group, or save elsewhere; no relaunch until it can be read",),
)
BESIDE = Diagnosis(
    causes=("an earlier training saved there, or the training was started with --fresh",),
    advice=("to continue from one of them, start the training with it once; later checkpoints are then recorded",),
)
