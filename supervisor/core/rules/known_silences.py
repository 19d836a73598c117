"""How limits on silence are lengthened by silences that are known: of earlier attempts at this step, or of this one."""

from __future__ import annotations

from supervisor.core.history import History
from supervisor.core.scale import Scale

SILENT_S = 10.0
"""A pause of an attempt beyond which learned limits hold no more, where attempts were stopped for silence before."""


def count_silences_here(history: History) -> int:
    """Return how many attempts before this one were stopped for silence after the step that is its last."""
    return history.silences.count_at(_find_last_step(history))


def is_silent_again(history: History) -> bool:
    """Whether silences after this step, or others of this attempt, have shown to be the program's own, it may be."""
    return count_silences_here(history) > 0 or history.silences.longest_pause_s > SILENT_S


def lengthen_limit_s(history: History, limit_s: float, at_most_s: float) -> float:
    """Return a limit on silence, longer where silences are known that may be the program's own."""
    return history.silences.lengthen(limit_s, _find_last_step(history), at_most_s)


def _find_last_step(history: History) -> int | None:
    """Return the last step as the training counts it; None where that is not known."""
    return None if history.last_step is None or history.scale is Scale.ATTEMPT else history.last_step.step
