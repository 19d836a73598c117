"""Which of the notices that wait for a receiver are sent now, and which of them in one message; pure.

The steps are route, hold, inhibit, group and budget. None of them drops a notice: what is not sent now waits in the
record and is judged again, so that a clock that is set, a reload and a restart change nothing but the time of delivery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from fnmatch import fnmatchcase

from supervisor.alerts.channel import KeptNotice
from supervisor.alerts.fit import fit
from supervisor.alerts.message import DIGEST, compose
from supervisor.alerts.payload import TEST, rfc3339
from supervisor.alerts.quiet import QuietHours, read_hours
from supervisor.alerts.report import REPORT
from supervisor.alerts.settings import AlertSettings, find_zone
from supervisor.core.flags import Severity
from supervisor.core.moments import Moment
from supervisor.json_bytes import encode_json

OUTCOMES = frozenset({"incident.resumed", "job.gave_up", "job.finished", "job.last_resort"})
GROUP_S = 20.0
"""How long the first warning of a training waits for others."""
INHIBIT_S = 900.0
"""How long a warning waits at most for the end of an incident of its training."""
WARNINGS, WARNING_EVERY_S = 4, 600.0
ESSENTIALS, ESSENTIAL_EVERY_S = 5, 60.0
"""Messages at once, and seconds until there may be one more."""
LISTED = 12
"""Notices that a digest names; each essential one is named."""
LISTED_CHARACTERS = 100
RULES_COUNTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What one receiver wants."""

    kind: str = "webhook"
    floor: Severity = Severity.WARNING
    jobs: tuple[str, ...] = ()
    """Patterns of trainings; empty: all."""
    types: tuple[str, ...] = ()
    """Patterns of types of notices; empty: all."""
    digest: bool = False
    """Whether notices are gathered in messages for a person; a program gets each by itself."""
    remind: bool = True
    """Whether it is sent reminders of trainings that stand given up."""
    report_at: str | None = None
    """Time of day of its report of the past day; None: it gets none."""
    quiet: QuietHours | None = None
    zone: tzinfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A notice that may be sent to one receiver."""

    id: str
    notice: KeptNotice
    waited_s: float
    """Since it was queued; infinite for one that was tried before."""

    @property
    def job(self) -> str:
        """Its training."""
        return str(self.notice.data.get("job", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """How many messages may be sent: as many as `tokens`, which come back with time."""

    tokens: float
    at: Moment

    def refill(self, now: Moment, most: int, every_s: float) -> Bucket:
        """Return it with what came back by now."""
        return Bucket(tokens=min(most, self.tokens + max(0.0, now.seconds_since(self.at)) / every_s), at=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one receiver may still be sent."""

    warnings: Bucket
    essentials: Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a plan is made in."""

    now: Moment
    muted: bool = False
    """Whether a person wants to be sent nothing for a time."""
    open_jobs: frozenset[str] = frozenset()
    """Trainings with an open incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The messages to send now, each with the notices that it stands for, and what may be sent afterwards."""

    messages: tuple[tuple[Pending, ...], ...] = ()
    budget: Budget = field(kw_only=True)


def policy_of(settings: AlertSettings) -> Policy:
    """Return what a receiver wants."""
    zone = find_zone(settings)
    quiet = settings.quiet_hours and read_hours(settings.quiet_hours, settings.quiet_days, zone)
    return Policy(
        kind=settings.kind,
        floor=Severity[settings.min_severity.upper()],
        jobs=tuple(settings.jobs),
        types=tuple(settings.types),
        digest=settings.digest,
        remind=settings.remind,
        report_at=settings.report_at,
        quiet=quiet or None,
        zone=zone,
    )


def full_budget(now: Moment) -> Budget:
    """Return the budget of a receiver that was sent nothing yet."""
    return Budget(warnings=Bucket(tokens=WARNINGS, at=now), essentials=Bucket(tokens=ESSENTIALS, at=now))


def is_essential(notice: KeptNotice) -> bool:
    """Whether a notice is an outcome or critical."""
    return notice.type in OUTCOMES or notice.severity is Severity.CRITICAL


def routes(policy: Policy, kind: str, job: str | None) -> bool:
    """Whether a receiver wants notices of this type about this training; a notice about no training goes to all."""
    wants_type = not policy.types or any(fnmatchcase(kind, pattern) for pattern in policy.types)
    wants_job = not policy.jobs or job is None or any(fnmatchcase(job, pattern) for pattern in policy.jobs)
    return wants_type and wants_job


def plan(
    pending: Sequence[Pending],
    policy: Policy,
    budget: Budget,
    situation: Situation,
) -> Plan:
    """Return what one receiver is sent now."""
    now = situation.now
    permitted = tuple(hold(pending, policy, now.unix_s, muted=situation.muted))
    alone = tuple((item,) for item in pending if item.notice.type == TEST)
    alone += tuple((item,) for item in permitted if item.notice.type == REPORT)
    released = tuple(item for item in permitted if item.notice.type != REPORT)
    if not policy.digest:
        return Plan(messages=alone + tuple((item,) for item in released), budget=budget)
    budget = Budget(
        warnings=budget.warnings.refill(now, WARNINGS, WARNING_EVERY_S),
        essentials=budget.essentials.refill(now, ESSENTIALS, ESSENTIAL_EVERY_S),
    )
    essential = [(item,) for item in released if is_essential(item.notice)]
    warnings = group(inhibit((item for item in released if not is_essential(item.notice)), situation.open_jobs))
    first, essentials = apportion(essential, budget.essentials, most=LISTED)
    second, left = apportion(warnings, budget.warnings)
    return Plan(messages=alone + first + second, budget=Budget(warnings=left, essentials=essentials))


def hold(pending: Iterable[Pending], policy: Policy, unix_s: float, *, muted: bool) -> Iterator[Pending]:
    """Yield what may be sent at this time: nothing while muted, and in quiet hours what is critical."""
    quiet = policy.quiet is not None and policy.quiet.includes(unix_s)
    for item in pending:
        if item.notice.type != TEST and not muted and (not quiet or item.notice.severity is Severity.CRITICAL):
            yield item


def inhibit(warnings: Iterable[Pending], open_jobs: Collection[str]) -> Iterator[Pending]:
    """Yield the warnings that need not wait for the end of an incident of their training."""
    for item in warnings:
        if item.job not in open_jobs or item.waited_s >= INHIBIT_S:
            yield item


def group(warnings: Iterable[Pending]) -> list[tuple[Pending, ...]]:
    """Return the warnings of each training together, once the first of them has waited for others."""
    by_job: dict[str, list[Pending]] = {}
    for item in warnings:
        by_job.setdefault(item.job, []).append(item)
    return [tuple(items) for items in by_job.values() if max(item.waited_s for item in items) >= GROUP_S]


def apportion(
    groups: Sequence[tuple[Pending, ...]], bucket: Bucket, most: int | None = None
) -> tuple[tuple[tuple[Pending, ...], ...], Bucket]:
    """Return the messages that the budget allows: each group by itself, or what is too many as one.

    No message has more than `most` notices; what is left waits.
    """
    allowed = int(bucket.tokens)
    if not groups or allowed < 1:
        return (), bucket
    messages = list(groups[:allowed]) if len(groups) <= allowed else list(groups[: allowed - 1])
    rest = [item for items in groups[len(messages) :] for item in items]
    if rest:
        messages.append(tuple(rest[:most]))
    return tuple(messages), replace(bucket, tokens=bucket.tokens - len(messages))


def build_digest(notices: Sequence[KeptNotice], host: str, now: Moment, zone: tzinfo | None) -> bytes:
    """Return one notice that stands for several: the essential ones each named, of the rest the first and a count."""
    ordered = sorted(notices, key=is_essential, reverse=True)
    named, rest = ordered[:LISTED], ordered[LISTED:]
    more = Counter(str(notice.data.get("rule") or notice.type) for notice in rest)
    severity = max(notice.severity for notice in notices)
    counts = dict(more.most_common(RULES_COUNTED))
    others = sum(more.values()) - sum(counts.values())
    data = {
        "severity": severity.label,
        "host": host,
        "count": len(notices),
        "alerts": [_summarize_notice(notice, zone) for notice in named],
        "more": {**counts, **({"others": others} if others else {})},
    }
    return encode_json({"type": DIGEST, "timestamp": rfc3339(now.unix_s), "data": data})


def _summarize_notice(notice: KeptNotice, zone: tzinfo | None) -> str:
    message = compose(notice, zone)
    return fit(": ".join((message.title, *message.lines[:1])), LISTED_CHARACTERS)
