"""What a simulated training spent its time on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from supervisor.core.fleet.ladder import Restart, Rung


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Seconds by what they were spent on, and counts."""

    total_s: float = 0.0
    productive_s: float = 0.0
    spent_s: dict[str, float] = field(default_factory=dict)
    """By part: lost_work, saving, detection, evidence, restart, and waiting for a requeue, a repair or a person."""
    faults: Counter[str] = field(default_factory=Counter)
    """By kind."""
    cost_s: dict[str, float] = field(default_factory=dict)
    """Unproductive seconds by kind of the fault."""
    rungs: Counter[Rung] = field(default_factory=Counter)
    excluded: int = 0
    wrongly_excluded: int = 0
    """Healthy nodes among the excluded."""

    def count(self, kind: str, restart: Restart, *, guilty: str | None) -> None:
        """Count a fault and how it was started again; `guilty` is the node at fault, None where no node was."""
        self.faults[kind] += 1
        self.rungs[restart.rung] += 1
        self.excluded += len(restart.excluded)
        self.wrongly_excluded += len(set(restart.excluded) - {guilty})

    def spend(self, part: str, seconds: float, kind: str) -> None:
        """Book unproductive seconds, for a kind of fault."""
        self.spent_s[part] = self.spent_s.get(part, 0.0) + seconds
        self.cost_s[kind] = self.cost_s.get(kind, 0.0) + seconds

    @property
    def unproductive_share(self) -> float:
        """1 - ETTR."""
        return 1.0 - self.productive_s / self.total_s
