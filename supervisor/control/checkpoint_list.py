"""The checkpoints of a job as the API lists them, from the database and from the files that still exist."""

from __future__ import annotations

import os
from collections.abc import Iterable

from supervisor.children.files_apart import apart
from supervisor.control import types
from supervisor.control.present import checkpoint_entry
from supervisor.core.checkpoints.checkpoint import Checkpoint, drop_captured_files


def listed(recorded: Iterable[Checkpoint]) -> list[types.CheckpointEntry]:
    """Return each recorded checkpoint once; of the snapshots (one every few minutes) only those that still exist."""
    return [
        checkpoint_entry(checkpoint)
        for checkpoint in drop_captured_files(recorded)
        if checkpoint.kind != "snapshot" or apart(os.path.exists, checkpoint.path)
    ]
