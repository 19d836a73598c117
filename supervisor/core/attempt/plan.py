"""The plan of a training: how many epochs and steps it has, as its framework or its own loops report it."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.foreign_values import EPOCH_MAX, STEP_MAX, as_int


@dataclass(slots=True, kw_only=True)
class Plan:
    """Of one attempt, by the newest report."""

    planned: bool = False
    """Whether a framework that the agent knows reported its training plan."""
    batches_per_epoch: int | None = None
    epochs: int | None = None
    steps_per_epoch: int | None = None
    """Of a framework that counts steps of the optimizer, or of a training's own loops."""
    total_steps: int | None = None
    """As such a framework plans them, or as the loops around the first step come to."""
    saves_each_epoch: bool = False
    """Whether the framework saves a checkpoint at the end of each epoch by itself."""

    def add_plan(self, facts: dict[str, object]) -> None:
        """Take in what a framework reports."""
        self.planned = True
        self.saves_each_epoch = facts.get("saves_each_epoch") is True
        self.batches_per_epoch = as_int(facts.get("batches_per_epoch"), maximum=STEP_MAX)
        self._add_totals(facts)

    def add_loops(self, facts: dict[str, object]) -> None:
        """Take in what the loops of a training come to; a framework knows better."""
        if not self.planned:
            self._add_totals(facts)

    def _add_totals(self, facts: dict[str, object]) -> None:
        self.epochs = as_int(facts.get("epochs"), maximum=EPOCH_MAX)
        self.steps_per_epoch = as_int(facts.get("steps_per_epoch"), maximum=STEP_MAX)
        self.total_steps = as_int(facts.get("total_steps"), maximum=STEP_MAX)
