"""What a rule measures now, against which limit, and how near it is, as `status` shows it.

A rule flags exactly where one of these is `reached`, with the severity given there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from supervisor.core.flags import RedFlag, Severity

Group: TypeAlias = Literal["steps", "losses", "cards", "memory", "storage", "pace", "process"]
"""The part of a training that a rule measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One measurement of a rule: a value and its limit, or a condition in words."""

    rule: str
    what: str
    """In words, for a person: `no step, in stage step`."""
    unit: str = ""
    """Of `now` and `limit`: `s`, `%`, `bytes`, `steps`."""
    now: float | None = None
    """None: not known, or not measured now."""
    limit: float | None = None
    """Where the rule flags; None for a condition without a number."""
    rest: float | None = None
    """The normal value, from which the distance to the limit is counted; None: 0, or the value itself."""
    learned: bool = False
    """Whether the limit was learned from what was seen; else it is configured."""
    below: bool = False
    """Whether smaller values are bad (free memory, batches a second)."""
    strict: bool = False
    """Whether a value equal to the limit is good."""
    held_s: float | None = None
    """How long the value has been beyond the limit; None where it is not."""
    hold_s: float | None = None
    """How long it has to be beyond it; None where once is enough."""
    lacks: str | None = None
    """The further condition that is not met."""
    met: bool = False
    """Of a condition without a limit: whether it holds."""
    severity: Severity = Severity.WARNING
    """Of the flag that reaching the limit would raise now."""
    not_watched: str | None = None
    """Why it is not measured now; None where it is."""

    @property
    def reached(self) -> bool:
        """Whether the rule flags: the limit is reached for long enough, and the further conditions are met."""
        if self.not_watched is not None or self.lacks is not None:
            return False
        if self.hold_s is not None and (self.held_s is None or self.held_s < self.hold_s):
            return False
        if self.limit is None:
            return self.met
        return self.now is not None and beyond(self.now, self.limit, below=self.below, strict=self.strict)

    @property
    def share(self) -> float | None:
        """The value as a share of the way to the limit, 0 to 1; None where not defined."""
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
    """Whether a value has reached a limit, or passed it where `strict`; NaN has."""
    if below:
        return not value >= limit if strict else not value > limit
    return not value <= limit if strict else not value < limit


def condition(rule: str, what: str, flag: RedFlag | None, severity: Severity = Severity.WARNING) -> Gauge:
    """Return a condition without a number, met where its rule flags; `severity` is what it would have."""
    return Gauge(rule=rule, what=what, met=flag is not None, severity=severity if flag is None else flag.severity)


def unwatched(rule: str, what: str, why: str) -> tuple[Gauge, ...]:
    """Return a gauge that is not measured now, with the reason."""
    return (Gauge(rule=rule, what=what, not_watched=why),)
