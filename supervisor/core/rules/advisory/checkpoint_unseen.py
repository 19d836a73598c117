"""Checkpoint unseen: checkpoints that the daemon may not read, does not look for, or did not prove. It only warns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.events import ExistingFound
from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, event_gauge
from supervisor.core.history import History

NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUnseen:
    """A folder or file of a checkpoint pattern cannot be read, a pattern is a folder, or unproven checkpoints exist.

    What cannot be read is not absent: no copy is kept or proven, and a retry does not overwrite it.
    """

    name: ClassVar[str] = "checkpoint_unseen"
    group: ClassVar[Group] = "storage"
    enabled: bool = True

    def may_flag(self, history: History) -> bool:
        """Whether something cannot be read, is not looked for, or existed at the start."""
        saves = history.saves
        return not history.over and (bool(saves.closed or saves.folders) or saves.existing is not None)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return whether something cannot be read, for as long as that lasts, is no file, or existed at the start."""
        observed, saves = None, history.saves
        if not history.over and saves.closed:
            observed = _observe_closed(saves.closed)
        elif not history.over:
            observed = _observe_folders(saves.folders) if saves.folders else _observe_existing(saves.existing)
        return (event_gauge("checkpoints that the daemon cannot read, find or verify", observed),)


def _observe_closed(closed: tuple[str, ...]) -> Observation:
    more = f" and {len(closed) - NAMED} more" if len(closed) > NAMED else ""
    return Observation(
        message=f"checkpoints cannot be read: {'; '.join(closed[:NAMED])}{more}",
        subject=closed[0],
        can_save=True,
        diagnosis=CLOSED,
    )


def _observe_folders(folders: tuple[str, ...]) -> Observation:
    return Observation(
        message=f"checkpoints are not found: {'; '.join(folders[:NAMED])}",
        subject=folders[0],
        can_save=True,
        diagnosis=FOLDER,
    )


def _observe_existing(existing: ExistingFound | None) -> Observation | None:
    if existing is None:
        return None
    text = f"started without a checkpoint handed to it, although {existing.count} unproven checkpoints exist"
    if existing.kept:
        text += f"; copies of {existing.kept} are kept in {existing.folder}"
    if existing.left_out:
        text += f"; no copy of {'; '.join(existing.left_out[:NAMED])}"
    return Observation(message=text, subject="existing checkpoints", can_save=True, diagnosis=EXISTING)


CLOSED = Diagnosis(
    causes=(
        "a umask of 077, a directory of mode 0700, or a home directory closed to the daemon's group",
        "the daemon's service hides the folder (ProtectHome, InaccessiblePaths)",
    ),
    advice=("open the folder to the daemon's group, or save elsewhere; no relaunch until it can be read",),
)
FOLDER = Diagnosis(
    causes=("a pattern of checkpoints.paths names files, unless it ends in /",),
    advice=("correct [jobs.NAME.checkpoints] paths, then `supervisorctl reload`; the training goes on",),
)
EXISTING = Diagnosis(
    causes=(
        "an earlier training saved there, or the training was started with --fresh",
        "they are of a format that cannot be verified (XGBoost's, a program's own), which the training loads by itself",
    ),
    advice=("to continue from one of them, start the training with it once; later checkpoints are then recorded",),
)
