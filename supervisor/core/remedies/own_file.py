"""No remedy helps a training that loads spoilt weights by itself: each attempt would load them again."""

from __future__ import annotations

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.remedies.causes import NON_FINITE
from supervisor.core.remedies.choose import Choice

SPOILT_STEPS = 3
"""Weights whose losses are not finite by then were spoilt before."""


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
