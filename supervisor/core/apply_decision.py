"""The fold of a job over decisions: its state after one took effect.

A decision takes effect on the job at once, before it is carried out: the next Tick must not decide it again, and the
remedies of a retry are in force before anything is launched.
"""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import assert_never

from supervisor.core import decisions as de
from supervisor.core.checkpoints.checkpoint import BEGINNING_ASKED
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import (
    MACHINE_SHORTAGE,
    UNKILLABLE,
    Attempt,
    Job,
    Move,
    Phase,
    RetryPlan,
    StopOrder,
)
from supervisor.core.moments import Moment
from supervisor.core.remedies.budget import Ledger
from supervisor.core.remedies.last_resorts import RESORTS, ResortTaken
from supervisor.core.remedies.trials import Trial
from supervisor.core.rules import cause_of
from supervisor.core.rules.crash_diagnosis import has_crashed
from supervisor.core.scale import Scale
from supervisor.core.start_failure import ABOUT_NO_CHECKPOINT, STATUS, is_passing
from supervisor.core.triage.state import TriageState
from supervisor.core.tuning.ordered_starts import (
    find_order,
    forget_refused,
    get_unused_since,
    why_start_failed,
)


def after_decision(job: Job, decision: de.Decision) -> Job:  # noqa: C901 - a case a kind of decision
    """Return the job after a decision about it took effect."""
    match decision:
        case de.Launch():
            return _fold_launch(job, decision)
        case de.Warn() | de.Note() | de.Continue():
            return _fold_warning(job, decision)
        case de.Stop():
            return _fold_stop(job, decision)
        case de.Kill():
            moved = job.moved(Move.KILL, decision.at, decision.reason)
            order = job.stop or StopOrder(at=decision.at, reason=decision.reason, save=False)
            return replace(moved, stop=replace(order, killed_at=decision.at))
        case de.LastResort():
            return _begin_resort(job, decision)
        case de.Triage():
            return _begin_triage(job, decision)
        case de.StartTriage():
            return _postpone_retry(job, decision)
        case de.Retry():
            return _fold_retry(job, decision)
        case de.GiveUp():
            return _fold_give_up(job, decision)
        case de.Finish():
            return _fold_finish(job, decision)
    assert_never(decision)


def _fold_warning(job: Job, decision: de.Warn | de.Note | de.Continue) -> Job:
    flag = decision.flag
    if isinstance(decision, de.Continue) and job.attempt is not None:
        job = replace(job, attempt=replace(job.attempt, continued_at=decision.at))
    if isinstance(decision, de.Note):
        return replace(job, shadows=job.shadows | {flag.key}, shadows_noted=job.shadows_noted + 1)
    warned = replace(job, open_flags=job.open_flags | {flag.key})
    return replace(warned, unkillable=True, reason=flag.message) if flag.rule == UNKILLABLE else warned


def _fold_stop(job: Job, decision: de.Stop) -> Job:
    order = StopOrder(
        at=decision.at,
        reason=decision.reason,
        save=decision.save,
        flag=decision.flag,
        order=decision.order,
        refused_start=decision.refused_start,
    )
    moved = replace(job.moved(Move.STOP, decision.at, decision.reason), asked_start=None)
    return _open_incident(replace(_end_remedy(moved, decision), stop=order), decision.flag, "stop")


def _fold_launch(job: Job, decision: de.Launch) -> Job:
    fresh = decision.resume_from is None and not decision.loads_itself
    return replace(
        job.moved(Move.LAUNCH, decision.at, decision.reason),
        attempt=_begin_attempt(job, decision),
        stop=None,
        retry=None,
        incident=_relaunch_incident(job, decision),
        open_flags=frozenset(),
        shadows=frozenset(),
        asked_start=None,
        course=job.course.launched(),
        restart_asked=False,
        fresh_asked=False,
        start_curve=None if fresh else job.start_curve,
        needs_others=job.needs_others and not fresh,
        began_unix_s=decision.at.unix_s if fresh else job.began_unix_s,
    )


def _begin_attempt(job: Job, decision: de.Launch) -> Attempt:
    point, order = (job.retry.resume_point, job.retry.order) if job.retry else (None, None)
    return Attempt(
        number=decision.attempt,
        launched_at=decision.at,
        resume_from=decision.resume_from,
        loads_itself=decision.loads_itself,
        set_aside=decision.set_aside,
        stand_in=decision.stand_in,
        together=decision.together,
        resume_curve=point.curve if point else None,
        memory_before=decision.memory,
        start=job.next_start,
        order=order if order is not None and order.measures else None,
    )


def _relaunch_incident(job: Job, decision: de.Launch) -> Incident | None:
    incident, last = job.incident, job.attempt
    if incident is None or incident.closed:
        return incident
    if last is not None and last.number == incident.attempt:
        # Steps may have come in between the flag and the end of the process.
        scale = last.scale or incident.scale
        incident = replace(incident, last_step=last.last_step, scale=scale, last_step_at=last.last_step_at)
    relaunched = incident.relaunched(decision.resume_from, loads_itself=decision.loads_itself)
    return replace(relaunched, set_aside=decision.set_aside)


def _fold_give_up(job: Job, decision: de.GiveUp) -> Job:
    plan = job.retry or _plan_retry(job, decision.flag, decision.at, decision.reason)
    moved = _open_incident(job.moved(Move.GIVE_UP, decision.at, decision.reason), decision.flag, "give_up")
    incident = moved.incident
    if incident and not incident.closed:
        incident = replace(incident, outcome="gave_up", reason=decision.reason)
    course = job.course
    if job.environment_problem is not None:
        course = course.never_began(decision.at, job.environment_problem).without("other_environment")
    elif decision.flag is not None:
        course = course.failed(cause_of(decision.flag), decision.at)
    return replace(
        forget_refused(moved, why_start_failed(job, decision)),
        stop=None,
        retry=plan,
        course=course,
        incident=incident,
        restart_asked=False,
        fresh_asked=False,
        unkillable=False,
    )


def _plan_retry(job: Job, flag: RedFlag | None, not_before: Moment, reason: str) -> RetryPlan:
    """Return what to wait for, with the beginning of the fault after which checkpoints are not used."""
    flag, unused_since = flag or (job.stop.flag if job.stop else None), get_unused_since(job)
    if flag is None or flag.since is None:
        died_unix_s = _find_failed_start(job, flag)
        return RetryPlan(not_before=not_before, reason=reason, fault_unix_s=unused_since, died_unix_s=died_unix_s)
    attempt, step = job.attempt, None
    # What was saved before a training started over has the steps of another one, and its time alone is compared.
    if attempt is not None and attempt.went_on is not False and not job.renumbered:
        step = attempt.training_step(flag.since_step)
    since = min(flag.since.unix_s, unused_since or flag.since.unix_s)
    return RetryPlan(not_before=not_before, reason=reason, fault_unix_s=since, fault_step=step)


def _fold_retry(job: Job, decision: de.Retry) -> Job:
    moved = _open_incident(job.moved(Move.RETRY, decision.at, decision.reason), decision.flag, "retry")
    plan = replace(
        _plan_retry(job, decision.flag, decision.not_before, decision.reason), order=find_order(job, decision)
    )
    if decision.refused_start is not None and job.phase is Phase.BACKOFF and job.retry is not None:
        plan = replace(job.retry, reason=decision.reason, resume_point=None, order=None)
    if decision.refused_environment is not None and job.retry is not None:
        plan = replace(job.retry, reason=decision.reason, resume_point=None, resort=None)
    if job.fresh_asked:
        plan = replace(plan, resume_point=BEGINNING_ASKED)
    elif decision.remedy == "older_generation" and job.attempt is not None:
        launched = job.attempt.launched_at.unix_s if job.attempt.loads_itself else None
        plan = replace(plan, older_than=job.attempt.resume_from, blamed_unix_s=launched)
    if decision.remedy in RESORTS:
        plan = replace(plan, resort=decision.remedy)
    if decision.refused_environment is not None and (why := job.environment_problem) is not None:
        moved = replace(moved, course=moved.course.never_began(decision.at, why).without("other_environment"))
    moved = forget_refused(_begin_trial(moved, decision), why_start_failed(job, decision))
    in_place = job.resumes_in_place or (job.attempt is not None and job.attempt.failed_from_copy)
    ledger = _count_restart(job, decision)
    ends = job.tune_ends + decision.ends_tune
    return replace(
        moved, stop=None, retry=plan, ledger=ledger, unkillable=False, resumes_in_place=in_place, tune_ends=ends
    )


def _find_failed_start(job: Job, flag: RedFlag | None) -> float | None:
    """Return when the attempt was launched that its program ended before the first step, where a file may be why."""
    return job.attempt.launched_at.unix_s if job.attempt is not None and flag and _may_be_of_file(flag) else None


def _may_be_of_file(flag: RedFlag) -> bool:
    """Whether a program may have ended at its start by what it read: of one in C++ nothing but its status is known."""
    if flag.start_failure is not None:
        return ABOUT_NO_CHECKPOINT.match(flag.start_failure) is None
    by_status = flag.fault == STATUS and not is_passing(flag.message)
    return flag.at_start and (by_status or has_crashed(flag))


def _postpone_retry(job: Job, decision: de.StartTriage) -> Job:
    """Return the job in backoff with its retry not yet decided: how the attempt was stopped is still to be judged."""
    moved = _open_incident(job.moved(Move.TRIAGE, decision.at, decision.reason), decision.flag, "retry")
    plan = replace(_plan_retry(job, decision.flag, decision.at, decision.reason), awaits_triage=True)
    triage_state = TriageState(
        attempt=decision.attempt,
        at=decision.at,
        flag=decision.flag,
        cause=decision.cause,
        step=decision.step,
        looked_for=decision.looked_for,
    )
    return replace(moved, retry=plan, triage=triage_state, unkillable=False)


def _fold_finish(job: Job, decision: de.Finish) -> Job:
    moved = job.moved(Move.REST if decision.by_user else Move.FINISH, decision.at, decision.reason)
    incident, attempt = moved.incident, moved.attempt
    if incident and not incident.closed:
        if attempt is not None and attempt.number > incident.attempt and not decision.by_user:
            incident = incident.running_since(attempt.launched_at)
        else:
            incident = replace(incident, outcome="stopped")
    is_unclear = decision.by_user or decision.unconfirmed
    plan = _plan_retry(job, decision.flag, decision.at, decision.reason) if is_unclear else None
    course = job.course.unclear(decision.at) if is_unclear else job.course.helped(decision.at)
    return replace(
        moved,
        stop=None,
        course=course,
        retry=job.retry or plan,
        incident=incident,
        restart_asked=False,
        fresh_asked=False,
        unkillable=False,
    )


def _open_incident(job: Job, flag: RedFlag | None, decision: str) -> Job:
    if flag is None or flag.severity is not Severity.CRITICAL or job.attempt is None:
        return job
    attempt = job.attempt
    if job.incident and job.incident.attempt == attempt.number:
        return job
    unmended, unmended_since = None, None
    if job.incident is not None and attempt.last_step is None:
        unmended, unmended_since = job.incident.find_unmended(attempt.number)
    incident = Incident(
        id=f"{job.name}-{attempt.number}",
        job=job.name,
        attempt=attempt.number,
        flag=flag,
        decision=decision,
        last_step=attempt.last_step,
        scale=attempt.scale or Scale.TRAINING,
        last_step_at=attempt.last_step_at,
        unmended=unmended,
        unmended_since=unmended_since,
    )
    return replace(job, incident=incident)


def _end_remedy(job: Job, decision: de.Stop) -> Job:
    """Return the job without the remedy that a planned restart ends."""
    if decision.takes_back is None:
        return job
    course = job.course.helped(decision.at).without(decision.takes_back)
    return replace(job, course=replace(course, returns=course.returns + 1))


def _count_restart(job: Job, decision: de.Retry) -> Ledger:
    """Return the restart account after a retry; one that is decided again was counted before."""
    if decision.refused_environment is not None:
        return job.ledger
    if decision.counts:
        known = _is_progress_known(job, decision.at)
        return job.ledger.restarted(decision.at, job.limits.budget, progress_known=known, cause=decision.cause or "")
    if decision.flag is not None and decision.flag.fault == MACHINE_SHORTAGE:
        return job.ledger.refused()
    return job.ledger if decision.cause is None else job.ledger.restarted_free()


def _begin_trial(job: Job, decision: de.Retry) -> Job:
    """Return the job with the remedy of a retry, and with the outcome of the remedy before it."""
    if decision.cause is None or decision.remedy is None or decision.flag is None or job.attempt is None:
        return job
    trial = Trial(
        attempt=job.next_number,
        at=decision.at,
        cause=decision.cause,
        remedy=decision.remedy,
        step=decision.step,
        fault=decision.flag.fault,
        environment=decision.environment,
        times=decision.times,
        start_failure=decision.flag.start_failure,
        at_start=decision.flag.at_start,
        reason=decision.why or "",
    )
    course = job.course.failed(decision.cause, decision.at).taken(trial, decision.gpu)
    incident = job.incident
    if incident is not None and incident.attempt == decision.attempt:
        incident = replace(incident, cause=decision.cause, remedy=decision.remedy, remedy_why=decision.why)
        incident = replace(incident, finding=incident.finding or decision.finding)
    return replace(job, course=course, incident=incident)


def _begin_resort(job: Job, decision: de.LastResort) -> Job:
    """Return the job with a last resort under way."""
    item = ResortTaken(kind=decision.kind, command=decision.command, at=decision.at, attempt=decision.attempt)
    return replace(job, resorts=(*job.resorts, item), reason=decision.reason)


def _begin_triage(job: Job, decision: de.Triage) -> Job:
    """Return the job with the replays of its bad step under way."""
    if job.triage is None:
        return job
    triage_state = replace(job.triage, began_at=decision.at, resume_from=decision.resume_from)
    return replace(job, triage=triage_state, reason=decision.reason)


def _is_progress_known(job: Job, at: Moment) -> bool:
    """Whether it is known that the attempt made progress or made none.

    An attempt that was never seen to step may have worked for hours without a hook; one that ended early has not. Steps
    that an attempt only counts itself are no progress, nor the lack of it.
    """
    attempt = job.attempt
    if attempt is not None and attempt.last_step is not None and attempt.scale is Scale.ATTEMPT:
        return False
    if attempt is None or attempt.launch_error is not None or attempt.last_step is not None:
        return True
    young = at.seconds_since(attempt.launched_at) < job.limits.budget.settle_s
    return young or job.ledger.furthest_step is not None
