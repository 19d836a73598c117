"""What is left of an earlier tune when one begins: its settings may have held until a moment ago."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.core.foreign_values import as_dict
from supervisor.core.tuning.compare import DROPPED_STEPS, FIRST_DROPPED_STEPS
from supervisor.core.tuning.knob import Facts
from supervisor.core.tuning.loader import count_ahead, count_switch_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """Settings of an earlier tune, by the agent's answers."""

    settings: Mapping[str, object] = field(default_factory=dict)
    """Those that held last."""
    ended_step: int | None = None
    """The step after which they held no more; None where they hold yet."""

    def after(self, answer: Mapping[str, object]) -> Before:
        """Return what is known after one more answer."""
        applied, step = as_dict(answer.get("applied")), answer.get("step")
        if applied:
            return Before(settings=applied)
        return replace(self, ended_step=step) if self.ended_step is None and isinstance(step, int) else self

    def count_left_over(self, last_step: int, facts: Facts) -> tuple[int, int, bool]:
        """Return how many steps after `last_step` are none of the owner's pace, and how many may not be.

        The third is whether the owner's workers may have just begun. Batches that other workers drew ahead come first,
        and after those the ones that the owner's drew meanwhile.
        """
        passed = 0 if self.ended_step is None else max(0, last_step - self.ended_step)
        switched = count_switch_steps(self.settings, {}, facts)
        settling = FIRST_DROPPED_STEPS if self.settings else DROPPED_STEPS
        drop = max(DROPPED_STEPS, max(settling, switched) - passed)
        ahead = max(0, count_ahead({}, facts) - max(0, passed - switched)) if switched else 0
        return drop, ahead, switched > passed
