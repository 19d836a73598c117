"""The programs that a launch puts before its command: they put checkpoints where the training looks for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from supervisor.checkpoint_patterns import with_home
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.job import Attempt
from supervisor.runner.code_copy import Code

FindDamaged = Callable[[str], tuple[Checkpoint, ...]]
"""Returns what was proven damaged of a place."""


def prepend_set_aside(
    code: Code, argv: list[str], checkpoint: Checkpoint, number: int, paths: Sequence[str]
) -> list[str]:
    """Return the command with, before it, the program that moves newer checkpoints out of the training's search."""
    chosen = checkpoint.source or checkpoint.path
    return [sys.executable, "-I", "-S", str(code.set_aside), str(number), checkpoint.path, chosen, *paths, "--", *argv]


def prepend_clearing(
    code: Code, argv: list[str], attempt: Attempt, stand_in: Checkpoint, damaged: FindDamaged
) -> list[str]:
    """Return the command with, before it, what leads a program that finds its newest save to the proven one.

    A generation is in its place first: a machine that is lost in between leaves the program something to find. Who
    puts it there keeps the damaged file itself.
    """
    put = (*attempt.together, stand_in)
    moved = [path for path in attempt.set_aside if path not in {part.source for part in put}]
    if moved:
        argv = prepend_set_aside(code, argv, stand_in, attempt.number, moved)
    for part in put:
        argv = prepend_placement(code, argv, part, part.source, damaged)
    return argv


def prepend_placement(
    code: Code, argv: list[str], checkpoint: Checkpoint | None, to: str | None, damaged: FindDamaged
) -> list[str]:
    """Return the command with, before it, the program that puts the checkpoint where the training looks for it.

    It is given what was proven damaged of that place, of which it keeps no more than a few.
    """
    if checkpoint is None or to is None:
        return argv
    place = with_home(to)
    contents = [f"{item.fingerprint.size_bytes}:{item.fingerprint.modified_ns}" for item in damaged(place)]
    return [sys.executable, "-I", "-S", str(code.put), checkpoint.path, place, *contents, "--", *argv]
