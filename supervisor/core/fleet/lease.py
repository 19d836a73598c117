"""When a node ends its own ranks: it has heard of no leader for the lease, and its ranks make no steps.

A step of a synchronous training needs every rank. While steps are made all nodes reach each other, so a leader that
died costs the training nothing. On a node that is cut off they end, at the latest when the leader ended all others.
The clock stands still while the machine sleeps, and the leader's does not: an answer from before counts that time too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WOKEN_S = 2.0
"""What a node has at least, once it woke up, to hear its leader or see a step: where all slept nothing was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a node knows of its leader; times are seconds on its monotonic clock."""

    lease_s: float
    renewed_s: float
    """When the beat was sent that the leader answered last: the answer may have been long on its way."""
    steps: int | None = None
    stepped_s: float | None = None
    """When the number of steps was last seen to grow."""
    woke_s: float | None = None
    """When this machine last woke up: answers to what was sent before say nothing of the time since."""

    def renewed(self, sent_s: float, lease_s: float) -> Lease:
        """Return it after the leader answered a beat that was sent at `sent_s`."""
        if self.woke_s is not None and sent_s < self.woke_s:
            return self
        return replace(self, renewed_s=max(self.renewed_s, sent_s), lease_s=lease_s)

    def stepped(self, steps: int | None, now_s: float) -> Lease:
        """Return it after the steps of the training were read."""
        if steps is None or steps == self.steps:
            return self
        grown = self.steps is not None and steps > self.steps
        return replace(self, steps=steps, stepped_s=now_s if grown else self.stepped_s)

    def woken(self, slept_s: float, now_s: float) -> Lease:
        """Return it after this machine slept for `slept_s`; the first reading of the steps is of before that."""
        room_s = self.lease_s - min(WOKEN_S, self.lease_s)
        return replace(
            self, renewed_s=max(self._last_s - slept_s, now_s - room_s), steps=None, stepped_s=None, woke_s=now_s
        )

    @property
    def _last_s(self) -> float:
        return self.renewed_s if self.stepped_s is None else max(self.renewed_s, self.stepped_s)

    def is_over(self, now_s: float) -> bool:
        """Whether the node must end its ranks now."""
        return not now_s - self._last_s < self.lease_s
