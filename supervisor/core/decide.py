"""What to do about a job, as a pure function of what is known; asked again after a crash it answers the same.

The order is the law: an attempt that is over is settled first, the user's wish outranks the rules, a deadline that
ran out outranks a new flag, and only then do flags speak.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core.causes import CARD_LOST, SLOW_START, cause_of
from supervisor.core.choosing import Ground, back_to, choose, help_against
from supervisor.core.examination import Examination, cause_found, looked_for, told_before
from supervisor.core.flags import SHADOW, RedFlag, Severity
from supervisor.core.freed import CardMemory, held_words, still_held
from supervisor.core.history import History
from supervisor.core.job import ALIVE, LAUNCH, UNKILLABLE, Attempt, Job, Phase, StopOrder, Wish
from supervisor.core.moments import Moment
from supervisor.core.resorts import Resort, due, would_help
from supervisor.core.rules import Rule
from supervisor.core.triage import Finding

STOP_SLACK_S = 10.0
"""Time for evidence and signalling on top of the training's own limits, before SIGKILL."""
WAITS_NAMED = 3

NOTHING_KNOWN = Ground()


def judge(rules: Iterable[Rule], history: History) -> tuple[RedFlag, ...]:
    """Return what the rules conclude, the worst first; what a rule in shadow would act on is marked so."""
    flags = (flag for rule in rules if rule.enabled and (flag := _asked(rule, history)) is not None)
    return tuple(sorted(flags, key=lambda flag: flag.severity, reverse=True))


def _asked(rule: Rule, history: History) -> RedFlag | None:
    flag = rule.check(history)
    if flag is None or rule.act != SHADOW or flag.severity is not Severity.CRITICAL:
        return flag
    return replace(flag, shadow=True)


def decide(
    job: Job, flags: Sequence[RedFlag], now: Moment, *, launch_allowed: bool = True, ground: Ground = NOTHING_KNOWN
) -> de.Decision | None:
    """Return the next decision about `job`, or None where all is as it should be.

    `flags` are the conclusions of the rules about the present attempt, worst first. `launch_allowed` is False while
    the daemon is shutting down or the machine is in no state to start anything (a full disk). `ground` is what of the
    machine decides which remedies there are.
    """
    if job.phase in ALIVE and job.attempt is not None:
        return _alive(job, job.attempt, flags, now, ground)
    if job.replaying and job.examination is not None:
        return _unkillable_replay(job, job.examination, now)  # nothing else starts, and nothing is over, before it ends
    if job.wish is Wish.STOP and job.phase in (Phase.PENDING, Phase.BACKOFF):
        return de.Finish(at=now, job=job.name, attempt=job.number, reason="stopped by its user", by_user=True)
    if not launch_allowed or job.shutting_down:
        return None
    if job.phase is Phase.PENDING:
        return _launch_pending(job, now, ground)
    return _after_backoff(job, now, ground) if job.phase is Phase.BACKOFF else None


def _launch_pending(job: Job, now: Moment, ground: Ground) -> de.Decision:
    return de.Launch(
        at=now,
        job=job.name,
        attempt=job.number + 1,
        resume_from=None,
        reason=job.reason or "start",
        memory=ground.memory,
    )


def _after_backoff(job: Job, now: Moment, ground: Ground) -> de.Decision | None:
    plan = job.retry
    if job.examining and job.examination is not None and job.attempt is not None:
        return _examined(job, job.attempt, job.examination, now, ground)
    if plan is not None and plan.resort is not None:
        resort = _resort_first(job, plan.resort, now, ground)
        if resort is not None:
            return resort
    if any(one.busy(now, job.limits.resort_s) for one in job.resorts):
        return None
    if plan is None or plan.resume_point is None or now.seconds_since(plan.not_before) < 0:
        return None
    point = plan.resume_point
    if not point.possible:
        return de.GiveUp(at=now, job=job.name, attempt=job.number, reason=point.reason)
    held = _held(job, ground)
    if held and now.seconds_since(job.since) < job.limits.freed_wait_s:
        return None
    reason = point.reason
    if held:
        reason += f"; {held_words(held)} still held {job.limits.freed_wait_s:.0f} s after the attempt before it ended"
    return de.Launch(
        at=now,
        job=job.name,
        attempt=job.number + 1,
        resume_from=point.checkpoint,
        reason=reason,
        memory=ground.memory,
    )


def _held(job: Job, ground: Ground) -> tuple[CardMemory, ...]:
    """Return what the attempt that ended still holds of its cards."""
    if job.attempt is None or job.limits.freed_wait_s <= 0:
        return ()
    return still_held(job.attempt.memory_before, ground.memory)


def _examined(job: Job, attempt: Attempt, one: Examination, now: Moment, ground: Ground) -> de.Decision | None:
    """Have the triage made once there is a state to replay from; once it is over, or cannot be, decide the retry."""
    point = job.retry.resume_point if job.retry is not None else None
    needless = one.unwanted or job.limits.triage_s is None or (point is not None and not point.possible)
    if one.ended_at is not None or needless:
        return _again(job, attempt, one.flag, now, ground)
    if point is None or (_held(job, ground) and now.seconds_since(job.since) < job.limits.freed_wait_s):
        return None
    return de.Triage(
        at=now,
        job=job.name,
        attempt=attempt.number,
        reason=f"step {one.step} is replayed, to know why its {one.looked_for} ceased to be finite",
        step=one.step,
        looked_for=one.looked_for,
        resume_from=point.checkpoint,
    )


def _unkillable_replay(job: Job, one: Examination, now: Moment) -> de.Warn | None:
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


def _alive(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment, ground: Ground) -> de.Decision | None:
    if attempt.over:
        return _settle(job, attempt, flags, now, ground)
    if job.stop is not None and job.phase is Phase.STOPPING:
        return _deadline(job, job.stop, now)
    if job.phase is Phase.KILLING:
        return _unkillable(job, now, ground)
    asked = _asked_to_end(job)
    if asked is not None:
        flag = worst(flags)
        save = flag is None or flag.can_save
        return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=asked, save=save, flag=flag)
    return _on_flags(job, attempt, flags, now) or _back_to_card(job, attempt, now, ground)


def _back_to_card(job: Job, attempt: Attempt, now: Moment, ground: Ground) -> de.Stop | None:
    """Plan a restart, at a step's end and saved, where a training on the CPU has its card again."""
    card = back_to(job.course, job.limits.remedies, ground, now.seconds_since(attempt.launched_at))
    if card is None or job.phase is not Phase.RUNNING:
        return None
    reason = f"{card} has answered for {job.limits.remedies.back_after_s:.0f} s again: from the CPU back to it"
    return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=reason, save=True, takes_back="cpu_profile")


def _asked_to_end(job: Job) -> str | None:
    if job.wish is Wish.STOP:
        return "stopped by its user"
    if job.restart_asked:
        return "restart asked by its user"
    return "the daemon is stopping" if job.shutting_down else None


def _deadline(job: Job, order: StopOrder, now: Moment) -> de.Decision | None:
    allowed_s = job.limits.grace_s + (job.limits.save_s if order.save else 0.0)
    # Evidence comes before the signal; should neither come about, the time runs from the decision.
    since, slack_s = (order.signalled_at, 0.0) if order.signalled_at else (order.at, STOP_SLACK_S)
    if now.seconds_since(since) < allowed_s + slack_s:
        return None
    reason = f"still there {allowed_s:.0f} s after it was asked to end ({order.reason})"
    return de.Kill(at=now, job=job.name, attempt=job.number, reason=reason)


def _unkillable(job: Job, now: Moment, ground: Ground) -> de.Decision | None:
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


def _resort(job: Job, now: Moment, ground: Ground) -> de.LastResort | None:
    """Return the last resort that is due against a process that SIGKILL does not end."""
    one = due(ground.resorts, job.resorts, now, job.limits.resort_s)
    return None if one is None else _taking(job, one, now, "SIGKILL does not end its process")


def _resort_first(job: Job, kind: str, now: Moment, ground: Ground) -> de.LastResort | None:
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


def _on_flags(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment) -> de.Decision | None:
    flag = worst(flags)
    if flag is None:
        return _untold(job, flags, now)
    return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=flag.message, save=flag.can_save, flag=flag)


def _untold(job: Job, flags: Iterable[RedFlag], now: Moment) -> de.Warn | de.Note | None:
    """Return the first flag that is to be told and was not yet in this attempt; of one in shadow only note is taken."""
    for flag in flags:
        if flag.shadow:
            if flag.key not in job.shadows:
                return de.Note(at=now, job=job.name, attempt=job.number, flag=flag)
        elif flag.severity is not Severity.CRITICAL and flag.key not in job.open_flags:
            return de.Warn(at=now, job=job.name, attempt=job.number, flag=flag)
    return None


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


def _settle(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment, ground: Ground) -> de.Decision:
    """Decide about an attempt of which nothing runs any more."""
    number, stop = attempt.number, job.stop
    if job.wish is Wish.STOP:
        spoilt = _spoiling(flags)
        return de.Finish(at=now, job=job.name, attempt=number, reason="stopped by its user", by_user=True, flag=spoilt)
    if stop is not None and stop.flag is None:
        spoilt = _spoiling(flags)
        return de.Retry(
            at=now, job=job.name, attempt=number, reason=stop.reason, not_before=now, flag=spoilt, counts=False
        )
    cause = worst((stop.flag if stop else None, _not_launched(attempt, now), *flags))
    if cause is not None:
        return _again(job, attempt, cause, now, ground)
    return _untold(job, flags, now) or _ended(job, attempt, now)


def _spoiling(flags: Iterable[RedFlag]) -> RedFlag | None:
    """Return the worst of the flags that spoil what was saved; the way a stopped process ended is none of them."""
    return worst(flag for flag in flags if flag.since is not None)


def _not_launched(attempt: Attempt, now: Moment) -> RedFlag | None:
    if attempt.launch_error is None:
        return None
    message = f"could not be launched: {attempt.launch_error}"
    return RedFlag(rule=LAUNCH, severity=Severity.CRITICAL, at=now, message=message)


def _again(job: Job, attempt: Attempt, flag: RedFlag, now: Moment, ground: Ground) -> de.Decision:
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
