"""Reports once, at the first step, what a framework is going to train: its epochs and its steps."""

from __future__ import annotations

import math
import sys
from typing import Any, Optional

from . import claim, events
from .fence import fenced


class Plan:
    """Of one training; unknown or endless totals are left out."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self.reported = False

    @fenced
    def report(self, epochs: Any, total_steps: Any, steps_per_epoch: Any) -> None:
        """Write the plan, at the first call by a hook that represents the training."""
        if self.reported or claim.holding() is None or claim.rank != 0:
            return
        self.reported = True
        found = {
            "epochs": count_of(epochs),
            "total_steps": count_of(total_steps),
            "steps_per_epoch": count_of(steps_per_epoch),
        }
        known = {name: number for name, number in found.items() if number is not None}
        version = getattr(sys.modules.get(self._framework), "__version__", None)
        events.write("plan", framework=self._framework, version=version, **known)


def count_of(number: Any) -> Optional[int]:
    """Return a positive count, rounded up where an epoch is cut short; None for an infinite one or no number."""
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
        return None
    return math.ceil(number)
