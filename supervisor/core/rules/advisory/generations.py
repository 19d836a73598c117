"""Generations: a checkpoint of which no copy is kept. It only warns: the training itself is not affected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, condition
from supervisor.core.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """The training's next write may replace the only file to resume from: flagged once per attempt and file name."""

    name: ClassVar[str] = "generations"
    group: ClassVar[Group] = "storage"
    enabled: bool = True

    def check(self, history: History) -> RedFlag | None:
        """Flag the newest one."""
        missed = history.not_kept
        if missed is None:
            return None
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"no generation of {missed.path} is kept: {missed.reason}",
            subject=missed.path.rpartition("/")[2],
            can_save=True,
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return the condition as a gauge."""
        return (condition(self.name, "a checkpoint of which no generation is kept", self.check(history)),)
