"""When a node ends its own ranks: it has heard of no leader for the lease, and its ranks make no steps.

A step of a synchronous training needs every rank. While steps are made all nodes reach each other, so a leader that
died costs the training nothing. On a node that is cut off they end, at the latest when the leader ended all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a node knows of its leader; times are seconds on its monotonic clock."""

    lease_s: float
    renewed_s: float
    """When the beat was sent that the leader answered last: the answer may have been long on its way."""
    steps: int | None = None
    stepped_s: float | None = None
    """When the number of steps was last seen to grow."""

    def renewed(self, sent_s: float, lease_s: float) -> Lease:
        """Return it after the leader answered a beat that was sent at `sent_s`."""
        return replace(self, renewed_s=max(self.renewed_s, sent_s), lease_s=lease_s)

    def stepped(self, steps: int | None, now_s: float) -> Lease:
        """Return it after the steps of the training were read."""
        if steps is None or steps == self.steps:
            return self
        grown = self.steps is not None and steps > self.steps
        return replace(self, steps=steps, stepped_s=now_s if grown else self.stepped_s)

    def is_over(self, now_s: float) -> bool:
        """Whether the node must end its ranks now."""
        last_s = self.renewed_s if self.stepped_s is None else max(self.renewed_s, self.stepped_s)
        return not now_s - last_s < self.lease_s
