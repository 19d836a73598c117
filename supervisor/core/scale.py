"""The one place where steps are compared: a training's count and an attempt's own count never meet.

A training's count continues over its attempts. An attempt's own count begins again in each process; it becomes the
training's where the step that the process resumed from is known. A comparison across the two has no answer: None.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scale(Enum):
    """What a number of steps counts."""

    TRAINING = "training"
    """All steps of the training, those of earlier attempts included."""
    ATTEMPT = "attempt"
    """The steps of one process; where in the training it began is not known."""


@dataclass(frozen=True, slots=True)
class Place:
    """A step and the scale that it is counted on."""

    step: int
    attempt: int | None = None
    """The attempt that counts; None: the training."""

    @property
    def on_training(self) -> int | None:
        """The training's count; None where only the attempt's own is known."""
        return self.step if self.attempt is None else None


def steps_between(earlier: Place | None, later: Place | None) -> int | None:
    """Return how many steps lie between two places; None where one is unknown, or they are on different scales."""
    if earlier is None or later is None or earlier.attempt != later.attempt:
        return None
    return later.step - earlier.step


def is_beyond(place: Place | None, other: Place | None) -> bool | None:
    """Return whether a place is further than another; None where that cannot be compared."""
    between = steps_between(other, place)
    return None if between is None else between > 0


def same_place(place: Place | None, other: Place | None, tolerance_steps: int) -> bool:
    """Return whether two faults occurred at the same step; unknown or incomparable steps are not the same."""
    between = steps_between(place, other)
    return between is not None and abs(between) <= tolerance_steps


def on_training(step: int | None) -> Place | None:
    """Return a number that is known to be the training's count as a place."""
    return None if step is None else Place(step)


def lost_steps(last: Place | None, went_on_from: Place | None) -> int | None:
    """Return the steps made before a fault that had to be repeated; None where that is not known."""
    between = steps_between(went_on_from, last)
    return None if between is None else max(0, between)
