"""Generations: a checkpoint of which no copy is kept. It only warns: the training itself is not affected."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.gauge import Gauge, Group, Observation, event_gauge
from supervisor.core.history import History

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """The training's next write may replace the only file to resume from: flagged once per attempt and file name.

    Names that differ in numbers alone count as one: a disk without room refuses each save, and it is no news each time.
    """

    name: ClassVar[str] = "generations"
    group: ClassVar[Group] = "storage"
    enabled: bool = True

    def may_flag(self, history: History) -> bool:
        """Whether a checkpoint was not kept."""
        return history.saves.not_kept is not None

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return whether the newest checkpoint of which no generation is kept is there."""
        missed, observed = history.saves.not_kept, None
        if missed is not None:
            observed = Observation(
                message=f"no generation of {missed.path} is kept: {missed.reason}",
                subject=_DIGITS.sub("#", missed.path.rpartition("/")[2]),
                can_save=True,
            )
        return (event_gauge("a checkpoint of which no generation is kept", observed),)
