"""Follows the passes over the data that feeds the steps: what comes after the end of one is no step that is late.

A plain loop validates, saves, draws a report or ends there, for minutes or hours, and nothing else says so. A step is
due again once the same data is drawn from. A loader that looks one batch ahead, as accelerate's does, meets the end of
its data before it hands the last batch over: one step is made after the end, and none is due after that.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType
from typing import Any, Iterator, Optional

from . import claim
from .layout import STEP, VALIDATE


class Passes:
    """Which data was drawn from last, and which of it fed a step."""

    def __init__(self) -> None:
        self.drawn: Optional[int] = None
        """The identity of the data that the newest batch is of."""
        self.feeding: Optional[int] = None
        """That of the data which the newest step was made of."""
        self.ended_in: Optional[CodeType] = None
        """What met the end of the data, where nothing was drawn and no step was made since."""

    def begins(self, dataset: Any) -> None:
        """A pass over `dataset` begins, or its next batch is waited for."""
        recorder = claim.holding()
        self.ended_in = None
        if recorder is not None and recorder.stage == VALIDATE and self._feeds(dataset):
            recorder.stage = STEP

    @property
    def are_known(self) -> bool:
        """Whether steps are made of what a loader delivers, whose end is seen."""
        return self.feeding is not None

    def ended(self, dataset: Any) -> None:
        """A pass over `dataset` has ended. A thread that fetches ahead ends it before the last steps are made."""
        recorder = claim.holding()
        main = threading.current_thread() is threading.main_thread()
        if recorder is not None and main and recorder.stage == STEP and self._feeds(dataset):
            recorder.stage, self.ended_in = VALIDATE, next(_list_code(), None)

    def take_stage(self) -> int:
        """Return the stage that a step leads to which was made in another one: what follows the last one of a pass."""
        if self.ended_in is None:
            return STEP
        ended_in, self.ended_in = self.ended_in, None
        # What steps in the function that met the end, or is called by it, had all the batches before.
        return STEP if any(code is ended_in for code in _list_code()) else VALIDATE

    def _feeds(self, dataset: Any) -> bool:
        return self.feeding == id(dataset) and claim.is_reporting(claim.GENERIC)


def _list_code() -> Iterator[CodeType]:
    """Yield the code that runs, innermost first, without the agent's own around it."""
    frame = sys._getframe()
    own = frame.f_code.co_filename.rpartition("/")[0]
    while frame is not None:
        if frame.f_code.co_filename.rpartition("/")[0] != own:
            yield frame.f_code
        frame = frame.f_back  # type: ignore[assignment]
