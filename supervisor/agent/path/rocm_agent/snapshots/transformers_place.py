"""Where in its data a Hugging Face Trainer stands, and where each of its releases goes on by the number of its steps.

Up to 4.51 a Trainer reckons the steps of an epoch without the one that its last batches do not fill up. Up to 4.45
these batches are in the first step of the next epoch; from 4.46 on they make a step, but not in an epoch that goes on.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Dict, NamedTuple, Optional, Tuple

ROUNDS_UP, LAST_BATCHES_STEP = (4, 52), (4, 46)
"""The first releases that reckon with such a step, and that make one."""


class Place(NamedTuple):
    """Of a Trainer after a step."""

    epoch: int
    batches: int
    """Made of that epoch."""
    of: int
    """The batches that it has."""
    accumulated: int
    """Batches of a step."""
    batch_size: int


def place_of(trainer: Any, epoch: int, batches: int, of: int) -> Place:
    """Return where a Trainer stands that has made so many batches of an epoch."""
    if batches >= of:
        epoch, batches = epoch + 1, 0
    return Place(epoch, batches, of, trainer.args.gradient_accumulation_steps, trainer.args.train_batch_size)


def resumed_place(trainer: Any, ours: Dict[str, Any]) -> Optional[Place]:
    """Return where a snapshot was taken; None where it does not say so, or batches are others now."""
    found = ours.get("place")
    place = None if found is None else Place(*found)
    return place if place == (place and place_of(trainer, place.epoch, place.batches, place.of)) else None


def given_step(place: Place, step: int, release: Tuple[int, int]) -> Tuple[int, int]:
    """Return the number of steps by which a release goes on nearest before a place, and the batches it passes over.

    `step` is the true number, and what is returned wherever the release finds the place by it.
    """
    if not _differs(place, release):
        return step, place.batches
    reckoned = max(place.of // place.accumulated, 1)
    made = min(place.batches // place.accumulated, reckoned - 1)
    return place.epoch * reckoned + made, made * place.accumulated


def lost_batches(place: Place, release: Tuple[int, int]) -> str:
    """Return what of the epoch under way a release will leave out, "" for nothing."""
    if not place.batches or not _differs(place, release) or release < LAST_BATCHES_STEP:
        return ""
    text = "transformers %d.%d makes no step of the last %d batches of an epoch that goes on, for they fill up none"
    return text % (*release, place.of % place.accumulated)


def _differs(place: Place, release: Tuple[int, int]) -> bool:
    """Whether a release reckons with other steps of an epoch than it makes."""
    return bool(place.of % place.accumulated) and release < ROUNDS_UP


def release_here() -> Tuple[int, int]:
    """Return the first two numbers of the release that is imported, those of a new one where it has none."""
    numbers = re.match(r"(\d+)\.(\d+)", str(getattr(sys.modules.get("transformers"), "__version__", "")))
    return (int(numbers.group(1)), int(numbers.group(2))) if numbers else ROUNDS_UP
