"""What `checkpoints` lists of a job, by the record and by what still lies on the disk; it reads no file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from supervisor.control import types
from supervisor.control.shapes import checkpoint_entry
from supervisor.core.checkpoints import Checkpoint, told_once


def listed(recorded: Iterable[Checkpoint]) -> list[types.CheckpointEntry]:
    """Return each recorded checkpoint once; of the snapshots, one every few minutes, only those that are still kept."""
    return [checkpoint_entry(one) for one in told_once(recorded) if one.kind != "snapshot" or Path(one.path).exists()]
