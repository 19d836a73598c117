"""A save in several files: a program that is given one of them reads the others from next to it."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice
from pathlib import Path

from supervisor.children.files_apart import apart
from supervisor.core.checkpoints.checkpoint import Checkpoint, last_number
from supervisor.daemon.checkpoints.candidates import fingerprint

LOOKED_AT = 5000
"""Entries of a folder that are looked at for the other files of a save."""


def hand_over_in_place(checkpoint: Checkpoint) -> Checkpoint:
    """Return the training's own file in place of a generation of it, where other files of the same save lie next to it.

    A generation holds the one file that a pattern names. A program that reads its optimizer and its averages from next
    to its model may go on without them where they are not there. The file must still be what was captured and proven.
    """
    source, number = checkpoint.source, checkpoint.number
    if source is None or number is None or checkpoint.kind != "checkpoint":
        return checkpoint
    now = fingerprint(Path(source))
    if now is None:
        return checkpoint
    own = replace(checkpoint, path=source, source=None, fingerprint=now)
    return own if checkpoint.is_of(own) and apart(_has_another_part, source, number) else checkpoint


def _has_another_part(path: str, number: str) -> bool:
    """Whether next to a file lies another of the same number and kind, as `opt000040.pt` next to `model000040.pt`."""
    own = Path(path)
    try:
        if not own.is_file():
            return False
        with os.scandir(own.parent) as entries:
            names = [entry.name for entry in islice(entries, LOOKED_AT) if entry.is_file()]
    except OSError:
        return False
    others = (name for name in names if name != own.name and Path(name).suffix == own.suffix)
    return any(last_number(name) == number for name in others)
