"""What a rule measures now, against which limit, and how near it is: for `status`; it flags nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One thing that one rule watches."""

    rule: str
    what: str
    """In words, for a person: `seconds without a step in stage step`."""
    unit: str = ""
    """Of `now` and `limit`: `s`, `%`, `bytes`, `steps`."""
    now: float | None = None
    """None: not known, or not watched."""
    limit: float | None = None
    """Where it acts, or tells if it never acts."""
    learned: bool = False
    """Whether the limit was learned from what was seen; else it is the setting."""
    not_watched: str | None = None
    """Why it is not watched now; None where it is."""
    below: bool = False
    """Whether it is the smaller values that are bad (free memory, batches a second)."""

    @property
    def share(self) -> float | None:
        """How much of the way to the limit is gone, 0 to 1; None where that cannot be said."""
        if self.now is None or self.limit is None or self.not_watched is not None:
            return None
        top, bottom = (self.limit, self.now) if self.below else (self.now, self.limit)
        if bottom <= 0:
            return 1.0 if top >= bottom else None
        return min(1.0, max(0.0, top / bottom))
