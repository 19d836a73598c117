"""Counts the trainings that a script makes one after another in a process: a snapshot belongs to one of them.

Folds, several models, a pre-training before the training: the state of one loaded into another would train on without
an error. The others begin at their beginning. Steps are numbered over all of them, so that the newest
snapshot has the highest number.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional, Tuple

from rocm_agent import origin
from rocm_agent.layout import ENV_RESUME_FROM

from .files import OURS

FIT, BEFORE = "fit", "before"

_begun = 0
"""How many have begun in this process."""
_steps = 0
"""How many steps they made, by the counts of their frameworks."""
_resuming: Optional[int] = None
"""Which of them the checkpoint of this attempt belongs to; None before it was read."""


def begin(own_steps: int = 0, counted: int = 0) -> Dict[str, int]:
    """A training begins whose count stands at `own_steps`; return what its snapshots say of its place.

    `counted`: the steps that this process has counted, those of loops that are no framework's included.
    """
    global _begun
    _begun += 1
    return {FIT: _begun, BEFORE: max(max(_steps, counted) - own_steps, 0)}


def end(place: Dict[str, int], own_steps: int) -> None:
    """A training has ended, or raised, with its count at `own_steps`."""
    global _steps
    _steps = max(_steps, place[BEFORE] + own_steps)


def find_checkpoint(read: Callable[[str], Optional[Dict[str, Any]]]) -> Tuple[str, Optional[Dict[str, Any]]]:
    """Return the path of the checkpoint and what `read` returns for it, to the training that it was taken of.

    To the others the path is empty. What is no snapshot of ours does not say which it was: it is the first one's.
    """
    global _resuming
    path = os.environ.get(ENV_RESUME_FROM, "")
    if not path or _resuming not in (None, _begun):
        return "", None
    found = read(path)
    _resuming = 1 if found is None else found[OURS].get(FIT, 1)
    if _resuming == _begun:
        return path, found
    if _resuming > _begun:
        origin.belongs_to_later(path)
    return "", None
