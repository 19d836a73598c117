"""What a rule measures now, against which limit, and how near it is: for `status`; it flags nothing.

A rule flags where one of these is `reached`, with the severity that stands there, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from supervisor.core.flags import RedFlag, Severity

Group: TypeAlias = Literal["steps", "losses", "cards", "memory", "storage", "pace", "process"]
"""What of a training a rule watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One thing that one rule watches: a value and its limit, or a condition in words."""

    rule: str
    what: str
    """In words, for a person: `no step, in stage step`."""
    unit: str = ""
    """Of `now` and `limit`: `s`, `%`, `bytes`, `steps`."""
    now: float | None = None
    """None: not known, or not watched."""
    limit: float | None = None
    """Where it acts, or tells if it never acts; None for a condition that no number is near to."""
    rest: float | None = None
    """The value of a training that is well, from which nearness counts; None: 0, or however much is left."""
    learned: bool = False
    """Whether the limit was learned from what was seen; else it is the setting."""
    below: bool = False
    """Whether it is the smaller values that are bad (free memory, batches a second)."""
    strict: bool = False
    """Whether a value that is exactly the limit is well."""
    held_s: float | None = None
    """How long the value has been beyond the limit; None where that is no time yet."""
    hold_s: float | None = None
    """How long it has to be; None where once is enough."""
    lacks: str | None = None
    """What else must agree and does not."""
    met: bool = False
    """Of a condition without a limit: whether it holds."""
    severity: Severity = Severity.WARNING
    """Of the flag, were the limit reached as things stand."""
    not_watched: str | None = None
    """Why it is not watched now; None where it is."""

    @property
    def reached(self) -> bool:
        """Whether the rule flags: the limit is reached, for long enough, and whatever else must agree does."""
        if self.not_watched is not None or self.lacks is not None:
            return False
        if self.hold_s is not None and (self.held_s is None or self.held_s < self.hold_s):
            return False
        if self.limit is None:
            return self.met
        return self.now is not None and beyond(self.now, self.limit, below=self.below, strict=self.strict)

    @property
    def share(self) -> float | None:
        """How much of the way to the limit is gone, 0 to 1; None where that cannot be said."""
        if self.now is None or self.limit is None or self.not_watched is not None:
            return None
        if beyond(self.now, self.limit, below=self.below):
            return 1.0
        if self.rest is not None:
            top, bottom = self.now - self.rest, self.limit - self.rest
            return min(1.0, max(0.0, top / bottom)) if bottom else None
        top, bottom = (self.limit, self.now) if self.below else (self.now, self.limit)
        return min(1.0, max(0.0, top / bottom)) if bottom > 0 else None


def beyond(value: float, limit: float, *, below: bool = False, strict: bool = False) -> bool:
    """Whether a value has reached a limit, or passed it where `strict`; what is no number has."""
    if below:
        return not value >= limit if strict else not value > limit
    return not value <= limit if strict else not value < limit


def condition(rule: str, what: str, flag: RedFlag | None, severity: Severity = Severity.WARNING) -> Watched:
    """Return a condition that no number is near to, met where its rule flags; `severity` is what it would have."""
    return Watched(rule=rule, what=what, met=flag is not None, severity=severity if flag is None else flag.severity)


def unwatched(rule: str, what: str, why: str) -> tuple[Watched, ...]:
    """Return what a rule would watch, with the reason why it does not."""
    return (Watched(rule=rule, what=what, not_watched=why),)
