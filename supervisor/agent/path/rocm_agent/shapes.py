"""Tracks the shapes of batches: the first step of a new shape can take minutes, as kernels are searched or compiled.

MIOpen and cuDNN look for the fastest kernel at the first use of each shape, torch.compile makes one. A training whose
batches never look alike is left alone after a while: there every step would be a first one.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .layout import COMPILE, STEP
from .recorder import Recorder

SHAPES_LIMIT = 64
DEPTH_LIMIT = 3


class Shapes:
    """The shapes of one training's batches; `complete`: a hook reports every other stage of that training."""

    def __init__(self, *, complete: bool) -> None:
        self._complete = complete
        self._seen = set()
        self._given_up = False

    def saw(self, batch: Any, recorder: Recorder) -> None:
        """A batch has come: its step may compile if none like it came before."""
        shape = None if self._given_up else shape_of(batch)
        if shape is None or shape in self._seen:
            return
        self._seen.add(shape)
        self._given_up = len(self._seen) > SHAPES_LIMIT
        recorder.reports_all_stages(complete=self._complete and not self._given_up)
        if recorder.stage == STEP and not self._given_up:
            recorder.aside = COMPILE


def shape_of(batch: Any, depth: int = 0) -> Optional[Tuple[int, ...]]:
    """Return the shape of the first tensor in a batch, None where there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return tuple(shape)
    if depth < DEPTH_LIMIT and isinstance(batch, dict):
        batch = [batch["img"]] if "img" in batch else list(batch.values())
    if depth < DEPTH_LIMIT and isinstance(batch, (list, tuple)):
        for item in batch:
            found = shape_of(item, depth + 1)
            if found is not None:
                return found
    return None
