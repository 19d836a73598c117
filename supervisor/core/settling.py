"""What to do about an attempt of which nothing runs any more: finish, retry with what, examine first, or give up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core.causes import CARD_LOST, SLOW_START, cause_of
from supervisor.core.choosing import Ground, choose, help_against
from supervisor.core.examination import cause_found, looked_for, told_before
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.job import LAUNCH, Attempt, Job, Wish
from supervisor.core.judging import spoiling, untold, worst
from supervisor.core.moments import Moment
from supervisor.core.triage import Finding


def settle(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment, ground: Ground) -> de.Decision:
    """Decide about an attempt of which nothing runs any more."""
    number, stop = attempt.number, job.stop
    if job.wish is Wish.STOP:
        spoilt = spoiling(flags)
        return de.Finish(at=now, job=job.name, attempt=number, reason="stopped by its user", by_user=True, flag=spoilt)
    if stop is not None and stop.flag is None:
        spoilt = spoiling(flags)
        return de.Retry(
            at=now, job=job.name, attempt=number, reason=stop.reason, not_before=now, flag=spoilt, counts=False
        )
    cause = worst((stop.flag if stop else None, _not_launched(attempt, now), *flags))
    if cause is not None:
        return retry(job, attempt, cause, now, ground)
    return untold(job, flags, now) or _ended(job, attempt, now)


def _not_launched(attempt: Attempt, now: Moment) -> RedFlag | None:
    if attempt.launch_error is None:
        return None
    message = f"could not be launched: {attempt.launch_error}"
    return RedFlag(rule=LAUNCH, severity=Severity.CRITICAL, at=now, message=message)


def retry(job: Job, attempt: Attempt, flag: RedFlag, now: Moment, ground: Ground) -> de.Decision:
    """Retry with the next remedy for the cause, unless budget, exit status or remedies say that there is no sense."""
    number, budget, finding = attempt.number, job.limits.budget, _finding(job, attempt, flag)
    cause = cause_found(cause_of(flag), finding)
    code = attempt.exit.code if attempt.exit is not None and job.stop is None else None
    not_before = _not_before(job, now)
    again = de.Retry(
        at=now, job=job.name, attempt=number, reason=flag.message, not_before=not_before, flag=flag, cause=cause
    )
    if code is not None and code in budget.always_retry_exit_codes:
        return replace(again, counts=False)
    step = _place_of(attempt, flag, cause)
    choice = choose(job.course.failed(cause, now), job.limits.remedies, job.ended(cause, step, finding), ground)
    spent = job.ledger.spent(now, budget, cause) or (choice.reason if choice.remedy is None else None)
    if code is not None and code in budget.never_retry_exit_codes:
        spent = f"status {code} is never retried (budget.never_retry_exit_codes)"
    if spent is not None:
        taken = [one.kind for one in job.resorts]
        said = (spent, help_against(cause, job.limits.remedies, ground, taken), f"last: {flag.message}")
        return de.GiveUp(at=now, job=job.name, attempt=number, reason="; ".join(filter(None, said)), flag=flag)
    if finding is None and (examine := _examine(job, attempt, flag, cause, now)) is not None:
        return examine
    card = choice.card or (flag.subject.split(" ")[0] or None if cause == CARD_LOST else None)
    return replace(again, remedy=choice.remedy, why=choice.reason, step=step, card=card, finding=finding)


def _finding(job: Job, attempt: Attempt, flag: RedFlag) -> Finding | None:
    """Return what a triage said of this trouble, or of one before it at the same place."""
    last = job.examination
    if last is not None and last.attempt == attempt.number:
        return last.finding if last.finding is not None and last.finding.verdict != "unknown" else None
    if job.limits.triage_s is None or flag.since_step is None or looked_for(flag, cause_of(flag)) is None:
        return None
    return told_before(last, flag.since_step, job.limits.remedies.same_steps)


def _examine(job: Job, attempt: Attempt, flag: RedFlag, cause: str, now: Moment) -> de.Examine | None:
    """Put off the retry until a triage has said what was to blame; None where none is due, or it was made."""
    what, last = looked_for(flag, cause), job.examination
    if job.limits.triage_s is None or what is None or flag.since_step is None:
        return None
    if last is not None and last.attempt == attempt.number:
        return None
    return de.Examine(
        at=now,
        job=job.name,
        attempt=attempt.number,
        reason=flag.message,
        flag=flag,
        cause=cause,
        step=flag.since_step,
        looked_for=what,
    )


def _not_before(job: Job, now: Moment) -> Moment:
    """Return when the next attempt may start at the earliest; the time of a triage is part of the wait."""
    one = job.examination if job.examining else None
    if one is not None and one.unwanted:
        return now
    since = one.at if one is not None else now
    until = since.plus(job.ledger.backoff_s(job.limits.budget, f"{job.name} {job.number}"))
    return until if until.seconds_since(now) > 0 else now


def _place_of(attempt: Attempt, flag: RedFlag, cause: str) -> int | None:
    """Return the step at which a trouble came, None where none is known.

    A start that came to no step stands where it was resumed: the same start hangs at the same place.
    """
    if flag.since_step is not None:
        return flag.since_step
    if attempt.last_step is None and cause == SLOW_START:
        return attempt.resume_from.step if attempt.resume_from is not None else 0
    return attempt.last_step


def _ended(job: Job, attempt: Attempt, now: Moment) -> de.Decision:
    """Decide about an end of which no rule that acts has spoken: only a known good one is a finish."""
    if attempt.exit is not None and attempt.exit.clean:
        reason = "the training ended by itself with status 0"
    elif attempt.train_ended:
        reason = f"the training had ended by itself before its process {attempt.ending}"
    else:
        reason = f"its process {attempt.ending}, and no rule acts on that"
        return de.GiveUp(at=now, job=job.name, attempt=attempt.number, reason=reason)
    return de.Finish(at=now, job=job.name, attempt=attempt.number, reason=reason)
