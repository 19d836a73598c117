"""What to do about processes that were told to end and are there still: SIGKILL, then the last resorts, if any.

It decides nothing about what comes after them.
"""

from __future__ import annotations

import shlex

from supervisor.core import decisions as de
from supervisor.core.choosing import Ground
from supervisor.core.examination import Examination
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.job import UNKILLABLE, Job, StopOrder, Wish
from supervisor.core.moments import Moment
from supervisor.core.resorts import Resort, due, would_help

STOP_SLACK_S = 10.0
"""Time for evidence and signalling on top of the training's own limits, before SIGKILL."""
WAITS_NAMED = 3


def deadline(job: Job, order: StopOrder, now: Moment) -> de.Decision | None:
    """Return the order to kill, once an attempt has had its time to save and to end."""
    allowed_s = job.limits.grace_s + (job.limits.save_s if order.save else 0.0)
    # Evidence comes before the signal; should neither come about, the time runs from the decision.
    since, slack_s = (order.signalled_at, 0.0) if order.signalled_at else (order.at, STOP_SLACK_S)
    if now.seconds_since(since) < allowed_s + slack_s:
        return None
    reason = f"still there {allowed_s:.0f} s after it was asked to end ({order.reason})"
    return de.Kill(at=now, job=job.name, attempt=job.number, reason=reason)


def unkillable(job: Job, now: Moment, ground: Ground) -> de.Decision | None:
    """Say of what SIGKILL does not end that it is unkillable, then try the last resorts that are allowed."""
    killed_at = job.stop.killed_at if job.stop else None
    if job.unkillable:
        return _resort(job, now, ground) if job.wish is Wish.RUN else None
    if killed_at is None or now.seconds_since(killed_at) < job.limits.kill_wait_s:
        return None
    flag = RedFlag(
        rule=UNKILLABLE,
        severity=Severity.CRITICAL,
        at=now,
        message=f"still there {job.limits.kill_wait_s:.0f} s after SIGKILL: {_where(job)}; "
        f"{would_help(ground.resorts) or 'a reboot ends it'}; nothing else is started on its card",
    )
    return de.Warn(at=now, job=job.name, attempt=job.number, flag=flag)


def unkillable_replay(job: Job, one: Examination, now: Moment) -> de.Warn | None:
    """Say so of a replay that SIGKILL does not end."""
    if job.unkillable or not one.overdue(now, job.limits.triage_s or 0.0):
        return None
    flag = RedFlag(
        rule=UNKILLABLE,
        severity=Severity.CRITICAL,
        at=now,
        message="a replay of its triage is still there after SIGKILL; a reset of the card or a reboot ends it; "
        "nothing else is started on its card",
    )
    return de.Warn(at=now, job=job.name, attempt=job.number, flag=flag)


def _resort(job: Job, now: Moment, ground: Ground) -> de.LastResort | None:
    """Return the last resort that is due against a process that SIGKILL does not end."""
    one = due(ground.resorts, job.resorts, now, job.limits.resort_s)
    return None if one is None else _taking(job, one, now, "SIGKILL does not end its process")


def resort_first(job: Job, kind: str, now: Moment, ground: Ground) -> de.LastResort | None:
    """Return the last resort that a retry begins with, where it was not taken yet and is there still."""
    if any(one.kind == kind for one in job.resorts):
        return None
    offered = (one for one in ground.resorts if one.kind == kind and one.on and one.refused is None)
    one = next(offered, None)
    return None if one is None else _taking(job, one, now, job.reason or "no other remedy is left")


def _taking(job: Job, one: Resort, now: Moment, why: str) -> de.LastResort:
    reason = f"`{shlex.join(one.command)}`: {why}"
    return de.LastResort(at=now, job=job.name, attempt=job.number, reason=reason, kind=one.kind, command=one.command)


def _where(job: Job) -> str:
    """Return who waits where in the kernel, or what may be the case where nobody is known to."""
    waits = job.attempt.waits if job.attempt is not None else ()
    if waits:
        named = "; ".join(one.words for one in waits[:WAITS_NAMED])
        more = f" and {len(waits) - WAITS_NAMED} more" if len(waits) > WAITS_NAMED else ""
        return f"{named}{more}, which only a reset of the card or a reboot ends"
    return (
        "it waits in the kernel, most likely in the GPU driver, which only a reset of the card or a reboot ends, or "
        "the order to kill it was refused (see the daemon's log)"
    )
