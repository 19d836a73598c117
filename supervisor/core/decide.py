"""What to do about a job, as a pure function of what is known; asked again after a crash it answers the same.

The order is the law: an attempt that is over is settled first, the user's wish outranks the rules, a deadline that
ran out outranks a new flag, and only then do flags speak.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core import decisions as de
from supervisor.core.choosing import Ground, back_to
from supervisor.core.ending import deadline, resort_first, unkillable, unkillable_replay
from supervisor.core.examination import Examination
from supervisor.core.flags import RedFlag
from supervisor.core.freed import CardMemory, held_words, still_held
from supervisor.core.job import ALIVE, Attempt, Job, Phase, Wish
from supervisor.core.judging import untold, worst
from supervisor.core.moments import Moment
from supervisor.core.settling import retry, settle

NOTHING_KNOWN = Ground()


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
        return unkillable_replay(job, job.examination, now)  # nothing else starts, and nothing is over, before it ends
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
        resort = resort_first(job, plan.resort, now, ground)
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
        return retry(job, attempt, one.flag, now, ground)
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


def _alive(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment, ground: Ground) -> de.Decision | None:
    if attempt.over:
        return settle(job, attempt, flags, now, ground)
    if job.stop is not None and job.phase is Phase.STOPPING:
        return deadline(job, job.stop, now)
    if job.phase is Phase.KILLING:
        return unkillable(job, now, ground)
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


def _on_flags(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment) -> de.Decision | None:
    flag = worst(flags)
    if flag is None:
        return untold(job, flags, now)
    return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=flag.message, save=flag.can_save, flag=flag)
