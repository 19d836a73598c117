"""What a rule measures now, against which limit: `status` shows it, and a reached one is the flag of its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.moments import Moment

Group: TypeAlias = Literal["steps", "losses", "gpus", "memory", "storage", "pace", "process"]
"""The part of a training that a rule measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the flag of a reached gauge says besides rule, severity and time; the fields are those of `RedFlag`."""

    message: str
    subject: str = ""
    since: Moment | None = None
    since_step: int | None = None
    can_save: bool = False
    fault: str | None = None
    diagnosis: Diagnosis | None = None
    start_failure: str | None = None
    at_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One measurement of a rule: a value and its limit, or a condition in words."""

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
    observe: Callable[[], Observation] | None = field(default=None, compare=False, repr=False)
    """Returns what the flag says, called only where the gauge is reached; None: value and limit in words."""

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


def flag_reached(rule: str, gauges: Iterable[Gauge], at: Moment) -> RedFlag | None:
    """Return the flag of the reached gauge, of several that of the first with the highest severity; None: none is."""
    worst = max((gauge for gauge in gauges if gauge.reached), key=lambda gauge: gauge.severity, default=None)
    if worst is None:
        return None
    observed = _describe_value(worst) if worst.observe is None else worst.observe()
    return RedFlag(
        rule=rule,
        severity=worst.severity,
        at=at,
        message=observed.message,
        since=observed.since,
        since_step=observed.since_step,
        can_save=observed.can_save,
        subject=observed.subject,
        fault=observed.fault,
        diagnosis=observed.diagnosis,
        start_failure=observed.start_failure,
        at_start=observed.at_start,
    )


def event_gauge(what: str, observed: Observation | None, severity: Severity = Severity.WARNING) -> Gauge:
    """Return the gauge of an event, to which no number is near: reached where it was observed."""
    if observed is None:
        return Gauge(what=what, severity=severity)
    return Gauge(what=what, met=True, severity=severity, observe=lambda: observed)


def not_applicable(what: str, why: str) -> tuple[Gauge, ...]:
    """Return a gauge that is not measured now, with the reason."""
    return (Gauge(what=what, not_watched=why),)


def _describe_value(gauge: Gauge) -> Observation:
    """Return the observation of a rule that has no words of its own: `queue: 7 batches, limit 5 batches`."""
    if gauge.now is None or gauge.limit is None:
        return Observation(message=gauge.what)
    unit = f" {gauge.unit}" if gauge.unit else ""
    return Observation(message=f"{gauge.what}: {gauge.now:g}{unit}, limit {gauge.limit:g}{unit}")
