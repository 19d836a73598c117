"""How much of something may happen: a burst at once, and so much a second in the long run; time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Allowance:
    """A bucket of grants that fills at `per_s` up to `burst`; full at first."""

    per_s: float
    burst: float
    _left: float = field(init=False)
    _at_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._left = self.burst

    def left(self, at_s: float) -> int:
        """Return how many grants there are at a time; a clock that runs back adds none."""
        if self._at_s is not None and at_s > self._at_s:
            self._left = min(self.burst, self._left + (at_s - self._at_s) * self.per_s)
        self._at_s = at_s
        return max(0, int(self._left))

    def take(self, at_s: float, wanted: int = 1) -> bool:
        """Take `wanted` grants if all of them are there; return whether they were."""
        if self.left(at_s) < wanted:
            return False
        self._left -= wanted
        return True

    def spend(self, at_s: float, amount: int) -> None:
        """Take grants for what has happened already, into debt where there are too few."""
        self.left(at_s)
        self._left = max(self._left - amount, -self.burst)
