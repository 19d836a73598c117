"""Follows the passes over the data that feeds the steps: what comes after the end of one is no step that is late.

A plain loop validates, saves, draws a report or ends there, for minutes or hours, and nothing else says so. A step is
due again once the same data is drawn from.
"""

from __future__ import annotations

import threading
from typing import Any, Optional

from . import claim
from .layout import STEP, VALIDATE


class Passes:
    """Which data was drawn from last, and which of it fed a step."""

    def __init__(self) -> None:
        self.drawn: Optional[int] = None
        """The identity of the data that the newest batch is of."""
        self.feeding: Optional[int] = None
        """That of the data which the newest step was made of."""

    def begins(self, dataset: Any) -> None:
        """A pass over `dataset` begins, or its next batch is waited for."""
        recorder = claim.holding()
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
            recorder.stage = VALIDATE

    def _feeds(self, dataset: Any) -> bool:
        return self.feeding == id(dataset) and claim.is_reporting(claim.GENERIC)
