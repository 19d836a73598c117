"""Computes when the next snapshot is due, by the clock that the caller reads.

"auto" is the interval that loses least to saving and to faults together (Young 1974, Daly 2006), kept between a
shortest and a longest so that a wrong estimate costs little.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Deque, Optional, Tuple

AUTO = "auto"
SHORTEST_S = 5.0
LONGEST_S = 3600.0
STALL_SHARE = 0.005
"""Of the training's time, at most, spent on being copied."""
WRITE_SHARE = 0.05
"""Of the time, at most, in which the disk and one processor write a snapshot."""
LATE_SHARE = 0.1
COSTS_KEPT = 5
"""The median of this many counts: one write to a busy disk does not predict the next."""
MEAN_FAULT_S = 14400.0
"""Assumed time between two faults, unless the daemon provides it or the training has run longer."""


def optimal_s(stall_s: float, write_s: float, mean_fault_s: float) -> float:
    """Return the seconds between two snapshots with the least total cost, within the limits above.

    `stall_s` is how long a snapshot stops the training, `write_s` how long its writing takes in the background.
    """
    stall_s, mean_fault_s = max(stall_s, 1e-4), max(mean_fault_s, 1.0)
    part = stall_s / (2 * mean_fault_s)
    daly = mean_fault_s
    if part < 1:
        daly = math.sqrt(2 * stall_s * mean_fault_s) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s
    return min(max(daly, stall_s / STALL_SHARE, write_s / WRITE_SHARE, SHORTEST_S), LONGEST_S)


class Interval:
    """The setting, and when the last snapshot was taken."""

    def __init__(self, setting: str, mean_fault: str, now_ns: int) -> None:
        """`setting` is "auto" or seconds, 0 or nothing for never; `mean_fault` the seconds between faults, or ""."""
        self._auto = setting == AUTO
        self._costs: Deque[Tuple[float, float]] = deque(maxlen=COSTS_KEPT)
        self._began_ns = self._last_ns = now_ns
        self._mean_fault_s = _parse_seconds(mean_fault) or MEAN_FAULT_S
        # The first one measures the cost.
        self.every_s: Optional[float] = SHORTEST_S if self._auto else _parse_seconds(setting)
        self._next_ns = self._due_after(now_ns)

    def due(self, now_ns: int) -> bool:
        """Whether the next one is due."""
        return self._next_ns is not None and now_ns >= self._next_ns

    def late(self, now_ns: int) -> bool:
        """Whether it has been due for a tenth of the interval."""
        return self._next_ns is not None and now_ns >= self._next_ns + int((self.every_s or 0.0) * LATE_SHARE * 1e9)

    def may_follow_a_save(self, now_ns: int) -> bool:
        """Whether one may be taken early, at a save that the training makes itself."""
        if self._next_ns is None or self.every_s is None:
            return False
        return self.none_taken or now_ns >= self._last_ns + int(min(self.every_s, SHORTEST_S) * 1e9)

    @property
    def none_taken(self) -> bool:
        """Whether this process has taken none yet."""
        return self._last_ns == self._began_ns

    def taken(self, now_ns: int) -> None:
        """Count the interval from now."""
        self._last_ns = now_ns
        self._next_ns = self._due_after(now_ns)

    def measured(self, stall_s: float, write_s: float) -> None:
        """Choose the interval again from the costs of the last ones."""
        if self._auto:
            self._costs.append((stall_s, write_s))
            stall_s, write_s = (sorted(each)[len(each) // 2] for each in zip(*self._costs))
            # A training that has outlived the time between faults has shown that it is longer.
            mean_fault_s = max(self._mean_fault_s, (self._last_ns - self._began_ns) / 1e9)
            before, self.every_s = self.every_s, optimal_s(stall_s, write_s, mean_fault_s)
            if self._next_ns is not None:
                self._next_ns += int((self.every_s - (before or 0.0)) * 1e9)

    def _due_after(self, now_ns: int) -> Optional[int]:
        return None if not self.every_s else now_ns + int(self.every_s * 1e9)


def _parse_seconds(text: str) -> Optional[float]:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 < found < math.inf else None
