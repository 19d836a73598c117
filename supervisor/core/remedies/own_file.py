"""What to change where a training loads a damaged file by itself: each further attempt would load it again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from supervisor.core.checkpoints.checkpoint import Checkpoint, describe_paths
from supervisor.core.remedies.causes import NON_FINITE
from supervisor.core.remedies.choose import Choice
from supervisor.core.remedies.context import RemedyContext

SPOILT_STEPS = 3
"""Weights whose losses are not finite by then were spoilt before."""
OWN_FILES_AT_FAULT = (
    "a file that the program reads by itself is damaged, missing or another one, most likely its own last save; "
    "remove or replace that"
)
COULD_NOT = 78
"""EX_CONFIG of sysexits.h: how what runs before the training (runner/set_aside, place_checkpoint) ends."""
NOT_MOVED = re.compile(r"rocm-supervisor: .{0,4200}?(?:could not be moved aside|the checkpoint could not be written): ")
"""The messages of these."""
NEWER_ASIDE = (
    ", or set resume.set_newer_aside, which moves what checkpoints.paths finds that is newer than the proven checkpoint"
)


def blame_own_file(
    job: str, cause: str, own_file: str | None, given: Checkpoint | None, made_steps: int | None
) -> Choice | None:
    """Return the choice to give up with what to change, None where a training loaded no spoilt file by itself.

    `own_file` is what it loaded in place of `given`, `made_steps` how many steps it made before the fault.
    """
    if own_file is None or given is None or cause != NON_FINITE or made_steps is None or made_steps > SPOILT_STEPS:
        return None
    return Choice(
        remedy=None,
        reason=f"the training loaded {own_file} by itself, whose weights are spoilt, in place of {given.title}: have "
        f"resume.command take {{checkpoint}}, set resume.set_newer_aside, or move that file away, then "
        f"`supervisorctl start {job}`",
    )


def blame_unmoved(job: str, code: int | None, message: str, damaged: Sequence[str]) -> Choice | None:
    """Return the choice to give up where damaged saves could not be moved out of the program's search; else None."""
    if not damaged or code != COULD_NOT or NOT_MOVED.search(message) is None:
        return None
    return Choice(
        remedy=None,
        reason=f"{describe_paths(damaged)}: damaged, and it ends each start of the program, but it could not be moved: "
        f"move it away, then `supervisorctl start {job}`",
    )


def hint_at_own_files(context: RemedyContext, given: Checkpoint) -> str | None:
    """Return what to do where no start succeeds from any checkpoint, None where the program is given its checkpoint.

    `given` is the last one; nothing is moved for a snapshot, which the agent loads.
    """
    if not context.loads_itself:
        return None
    helps = given.kind == "checkpoint" and not context.newer_set_aside
    return f"or {OWN_FILES_AT_FAULT}{NEWER_ASIDE if helps else ''}"
