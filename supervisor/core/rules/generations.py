"""Generations: a checkpoint of which no copy is kept. It only tells: the training itself lacks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.watched import Group, Watched, condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """What the training writes next may be all that is left to resume from: told once an attempt and file name."""

    name: ClassVar[str] = "generations"
    group: ClassVar[Group] = "storage"
    enabled: bool = True
    act: bool = True

    def check(self, history: History) -> RedFlag | None:
        """Tell of the newest one."""
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

    def watch(self, history: History) -> tuple[Watched, ...]:
        """Return whether one was missed: no number is near to that."""
        return (condition(self.name, "a checkpoint of which no generation is kept", self.check(history)),)
