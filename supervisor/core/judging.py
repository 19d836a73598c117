"""What the rules say about an attempt, and which of it counts; it decides nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core.flags import SHADOW, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.rules import Rule


def judge(rules: Iterable[Rule], history: History) -> tuple[RedFlag, ...]:
    """Return what the rules conclude, the worst first; what a rule in shadow would act on is marked so."""
    flags = (flag for rule in rules if rule.enabled and (flag := _asked(rule, history)) is not None)
    return tuple(sorted(flags, key=lambda flag: flag.severity, reverse=True))


def _asked(rule: Rule, history: History) -> RedFlag | None:
    flag = rule.check(history)
    if flag is None or rule.act != SHADOW or flag.severity is not Severity.CRITICAL:
        return flag
    return replace(flag, shadow=True)


def worst(flags: Iterable[RedFlag | None]) -> RedFlag | None:
    """Return the first critical flag, with the earliest trouble of them all and `can_save` only where all allow it.

    Flags in shadow count for nothing.
    A crash that follows a non-finite loss names the crash, yet what was saved after the loss went wrong is spoilt.
    """
    critical = [one for one in flags if one is not None and one.severity is Severity.CRITICAL and not one.shadow]
    if not critical:
        return None
    troubles = [flag.since for flag in critical if flag.since is not None]
    steps = [flag.since_step for flag in critical if flag.since_step is not None]
    return replace(
        critical[0],
        since=min(troubles, key=lambda one: one.monotonic_s, default=None),
        since_step=min(steps, default=None),
        can_save=all(flag.can_save for flag in critical),
    )


def spoiling(flags: Iterable[RedFlag]) -> RedFlag | None:
    """Return the worst of the flags that spoil what was saved; the way a stopped process ended is none of them."""
    return worst(flag for flag in flags if flag.since is not None)


def untold(job: Job, flags: Iterable[RedFlag], now: Moment) -> de.Warn | de.Note | None:
    """Return the first flag that is to be told and was not yet in this attempt; of one in shadow only note is taken."""
    for flag in flags:
        if flag.shadow:
            if flag.key not in job.shadows:
                return de.Note(at=now, job=job.name, attempt=job.number, flag=flag)
        elif flag.severity is not Severity.CRITICAL and flag.key not in job.open_flags:
            return de.Warn(at=now, job=job.name, attempt=job.number, flag=flag)
    return None
