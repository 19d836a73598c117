"""How a job changes with what happened and with what was decided; it decides nothing itself.

A decision takes effect on the job at once, before its act is carried out: the next Tick must not decide it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from typing_extensions import assert_never

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.causes import cause_of
from supervisor.core.checkpoints import ResumePoint
from supervisor.core.course import Course
from supervisor.core.examination import Examination
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import ALIVE, ENDED, UNKILLABLE, Attempt, Job, Move, Phase, RetryPlan, StopOrder, Wish
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage, StepRecord
from supervisor.core.resorts import RESORTS
from supervisor.core.treatment import (
    heard,
    past_the_trouble,
    resort_ended,
    resort_taken,
    spent,
    taken_back,
    treated,
    triage_begun,
    triage_ended,
)

_BEGINNING = ResumePoint(checkpoint=None, possible=True, reason="asked to start from the beginning")


def after_event(job: Job, event: ev.Event) -> Job:
    """Return the job after an event about it; events about other jobs or attempts leave it as it is."""
    if isinstance(event, ev.ClockStepped):
        return _clock_stepped(job, event)
    if isinstance(event, ev.Asked):
        return _asked(job, event) if event.job == job.name else job
    if not isinstance(event, ev.AttemptEvent) or event.job != job.name:
        return job
    if isinstance(event, ev.EvidenceTaken):
        return _evident(job, event)
    if job.attempt is None or event.attempt != job.attempt.number:
        return job
    return _attempt_event(job, job.attempt, event)


def _attempt_event(job: Job, attempt: Attempt, event: ev.AttemptEvent) -> Job:
    match event:
        case ev.Launched() | ev.LaunchFailed() | ev.Exited() | ev.HostLost():
            return replace(job, attempt=_lived(attempt, event))
        case ev.StepsMade():
            return _stepped(job, attempt, event)
        case ev.AgentSaid() | ev.StageEntered():
            job = heard(job, attempt, event) if isinstance(event, ev.AgentSaid) else job
            attempt = job.attempt or attempt
            return replace(job, attempt=replace(attempt, train_ended=_train_ended(attempt, event)))
        case ev.ResortEnded():
            return resort_ended(job, event)
        case ev.TriageEnded():
            return triage_ended(job, event)
        case ev.EvidenceTaken() | ev.Signalled() | ev.ResumePointFound():
            return _answered(job, event)
        case ev.OutputSeen():
            failed = any(one.fault is FaultClass.MIOPEN for one in event.findings)
            return replace(job, miopen_failed=True) if failed else job
        case ev.ProcessesRead():
            return _waiting(job, attempt, event)
        case ev.CheckpointSeen() | ev.CheckpointNotKept() | ev.Looked():
            return job
    assert_never(event)


def _answered(job: Job, event: ev.EvidenceTaken | ev.Signalled | ev.ResumePointFound) -> Job:
    """Return the job after word of what came of a decision; an answer that comes twice or too late changes nothing."""
    match event:
        case ev.EvidenceTaken():
            return _evident(job, event)
        case ev.Signalled():
            if job.stop is None or job.stop.signalled_at is not None:
                return job
            return replace(job, stop=replace(job.stop, signalled_at=event.at))
        case ev.ResumePointFound():
            if job.phase is not Phase.BACKOFF or job.retry is None or job.retry.resume_point is not None:
                return job
            return replace(job, retry=replace(job.retry, resume_point=event.point))
    assert_never(event)


def _evident(job: Job, event: ev.EvidenceTaken) -> Job:
    """Keep where the evidence lies; that of a crash may come when the next attempt runs already."""
    if job.incident is None or job.incident.attempt != event.attempt:
        return job
    return replace(job, incident=replace(job.incident, evidence=event.folder))


def _waiting(job: Job, attempt: Attempt, event: ev.ProcessesRead) -> Job:
    """Keep who waits in the kernel, of an attempt that SIGKILL should have ended; of any other that means nothing."""
    waits = event.reading.waits
    if job.phase is not Phase.KILLING or not waits or waits == attempt.waits:
        return job
    return replace(job, attempt=replace(attempt, waits=waits))


def _lived(attempt: Attempt, event: ev.Launched | ev.LaunchFailed | ev.Exited | ev.HostLost) -> Attempt:
    match event:
        case ev.Launched():
            return replace(attempt, shim_pid=event.shim_pid, training_pid=event.training_pid)
        case ev.LaunchFailed():
            return replace(attempt, launch_error=event.error)
        case ev.Exited():
            return replace(attempt, exit=event.status)
        case ev.HostLost():
            return replace(attempt, host_lost=event.reason)
    assert_never(event)


def _train_ended(attempt: Attempt, event: ev.AgentSaid | ev.StageEntered) -> bool:
    """Whether the training has ended; one process may train again after that."""
    if isinstance(event, ev.StageEntered):
        return attempt.train_ended and event.stage not in (Stage.SETUP, Stage.WARMUP)
    return event.word is ev.Word.TRAIN_END or (attempt.train_ended and event.word is not ev.Word.PLAN)


def _clock_stepped(job: Job, event: ev.ClockStepped) -> Job:
    """Return the job after the wall clock jumped: back in time, what is saved now must not look older than it is."""
    if job.began_unix_s is None or not event.by_s < 0:
        return job
    return replace(job, began_unix_s=job.began_unix_s + event.by_s)


def _asked(job: Job, event: ev.Asked) -> Job:
    match event.ask:
        case ev.Ask.START:
            return _started(replace(job, wish=Wish.RUN, shutting_down=False), event)
        case ev.Ask.STOP:
            return replace(job, wish=Wish.STOP, restart_asked=False, fresh_asked=False)
        case ev.Ask.RESTART:
            started = _asked(job, replace(event, ask=ev.Ask.START))
            alive = job.phase in ALIVE
            fresh = (alive and event.fresh) or (started.examining and started.fresh_asked)
            return replace(started, restart_asked=alive, fresh_asked=fresh)
        case ev.Ask.SHUT_DOWN:
            return replace(job, shutting_down=True)
    assert_never(event.ask)


def _started(job: Job, event: ev.Asked) -> Job:
    reason = f"started by {event.by}"
    if job.examining and job.examination is not None:
        unwanted = replace(job.examination, unwanted=True)
        return replace(job, examination=unwanted, fresh_asked=job.fresh_asked or event.fresh)
    if job.phase is Phase.BACKOFF and job.retry is not None:
        point = _BEGINNING if event.fresh else job.retry.resume_point
        return replace(job, retry=replace(job.retry, not_before=event.at, resume_point=point))
    if job.phase not in ENDED:
        return job
    course = Course() if event.fresh else job.course.forgiven(job.number)
    job = replace(job, ledger=job.ledger.forgiven(), course=course, resorts=(), examination=None)
    if event.fresh or job.phase is Phase.FINISHED or job.attempt is None:
        return replace(job.moved(Move.WAKE, event.at, reason), retry=None)
    plan = job.retry or RetryPlan(not_before=event.at, reason=reason)
    return replace(
        job.moved(Move.RESUME, event.at, reason),
        retry=replace(plan, not_before=event.at, resume_point=None, examining=False),
    )


def _stepped(job: Job, attempt: Attempt, event: ev.StepsMade) -> Job:
    if event.rank != 0 or not event.records:
        return job
    first, last = event.records[0], event.records[-1]
    furthest = max(one.step for one in event.records)
    job = replace(job, attempt=_with_steps(attempt, first, last), ledger=job.ledger.stepped(furthest))
    job = past_the_trouble(job, furthest, event.at)
    if job.resorts and job.ledger.in_a_row == 0:
        job = replace(job, resorts=())
    if job.incident and not job.incident.closed and job.incident.attempt < attempt.number:
        job = replace(job, incident=job.incident.stepping_again(first.at))
    return job.moved(Move.STEP, event.at) if job.phase is Phase.STARTING else job


def _with_steps(attempt: Attempt, first: StepRecord, last: StepRecord) -> Attempt:
    return replace(
        attempt,
        first_step_at=attempt.first_step_at or first.at,
        last_step=last.step,
        last_step_at=last.at,
        epoch=attempt.epoch if last.epoch is None else last.epoch,
        loss=last.loss,
    )


def after_flags(job: Job, flags: Iterable[RedFlag]) -> Job:
    """Return the job after its rules spoke: a trouble in shadow that has gone is noted again when it comes back."""
    if not job.shadows:
        return job
    standing = job.shadows & {flag.key for flag in flags if flag.shadow}
    return job if standing == job.shadows else replace(job, shadows=standing)


def after_decision(job: Job, decision: de.Decision) -> Job:
    """Return the job after a decision about it took effect."""
    match decision:
        case de.Launch():
            return _launched(job, decision)
        case de.Warn() | de.Note():
            return _told(job, decision)
        case de.Stop():
            moved = job.moved(Move.STOP, decision.at, decision.reason)
            order = StopOrder(at=decision.at, reason=decision.reason, save=decision.save, flag=decision.flag)
            return _with_incident(replace(taken_back(moved, decision), stop=order), decision.flag, "stop")
        case de.Kill():
            moved = job.moved(Move.KILL, decision.at, decision.reason)
            order = job.stop or StopOrder(at=decision.at, reason=decision.reason, save=False)
            return replace(moved, stop=replace(order, killed_at=decision.at))
        case de.LastResort() | de.Triage():
            return resort_taken(job, decision) if isinstance(decision, de.LastResort) else triage_begun(job, decision)
        case de.Examine():
            return _to_examine(job, decision)
        case de.Retry():
            return _retried(job, decision)
        case de.GiveUp():
            return _given_up(job, decision)
        case de.Finish():
            return _finished(job, decision)
    assert_never(decision)


def _told(job: Job, decision: de.Warn | de.Note) -> Job:
    flag = decision.flag
    if isinstance(decision, de.Note):
        return replace(job, shadows=job.shadows | {flag.key}, shadows_noted=job.shadows_noted + 1)
    told = replace(job, open_flags=job.open_flags | {flag.key})
    return replace(told, unkillable=True, reason=flag.message) if flag.rule == UNKILLABLE else told


def _launched(job: Job, decision: de.Launch) -> Job:
    moved = job.moved(Move.LAUNCH, decision.at, decision.reason)
    point = job.retry.resume_point if job.retry else None
    attempt = Attempt(
        number=decision.attempt,
        launched_at=decision.at,
        resume_from=decision.resume_from,
        resume_curve=point.curve if point else None,
        memory_before=decision.memory,
    )
    fresh = decision.resume_from is None
    return replace(
        moved,
        attempt=attempt,
        stop=None,
        retry=None,
        incident=_relaunched(job, decision),
        open_flags=frozenset(),
        shadows=frozenset(),
        course=job.course.launched(),
        restart_asked=False,
        fresh_asked=False,
        began_unix_s=decision.at.unix_s if fresh else job.began_unix_s,
    )


def _relaunched(job: Job, decision: de.Launch) -> Incident | None:
    incident, last = job.incident, job.attempt
    if incident is None or incident.closed:
        return incident
    if last is not None and last.number == incident.attempt:
        # Steps may have come in between the flag and the end of the process.
        incident = replace(incident, last_step=last.last_step, last_step_at=last.last_step_at)
    return incident.relaunched(decision.resume_from)


def _given_up(job: Job, decision: de.GiveUp) -> Job:
    plan = job.retry or _plan(job, decision.flag, decision.at, decision.reason)
    moved = _with_incident(job.moved(Move.GIVE_UP, decision.at, decision.reason), decision.flag, "give_up")
    incident = moved.incident
    if incident and not incident.closed:
        incident = replace(incident, outcome="gave_up", reason=decision.reason)
    course = job.course if decision.flag is None else job.course.failed(cause_of(decision.flag), decision.at)
    return replace(
        moved,
        stop=None,
        retry=plan,
        course=course,
        incident=incident,
        restart_asked=False,
        fresh_asked=False,
        unkillable=False,
    )


def _plan(job: Job, flag: RedFlag | None, not_before: Moment, reason: str) -> RetryPlan:
    """Return what to wait for, with the trouble that spoilt what was saved after it."""
    flag = flag or (job.stop.flag if job.stop else None)
    if flag is None or flag.since is None:
        return RetryPlan(not_before=not_before, reason=reason)
    step = None if job.renumbered else flag.since_step
    return RetryPlan(not_before=not_before, reason=reason, trouble_unix_s=flag.since.unix_s, trouble_step=step)


def _retried(job: Job, decision: de.Retry) -> Job:
    moved = _with_incident(job.moved(Move.RETRY, decision.at, decision.reason), decision.flag, "retry")
    plan = _plan(job, decision.flag, decision.not_before, decision.reason)
    if job.fresh_asked:
        plan = replace(plan, resume_point=_BEGINNING)
    elif decision.remedy == "older_generation" and job.attempt is not None:
        plan = replace(plan, older_than=job.attempt.resume_from)
    if decision.remedy in RESORTS:
        plan = replace(plan, resort=decision.remedy)
    moved = treated(moved, decision)
    return replace(moved, stop=None, retry=plan, ledger=spent(job, decision), unkillable=False)


def _to_examine(job: Job, decision: de.Examine) -> Job:
    """Return the job in backoff, its retry not decided: how the attempt was stopped is still to be judged."""
    moved = _with_incident(job.moved(Move.EXAMINE, decision.at, decision.reason), decision.flag, "retry")
    plan = replace(_plan(job, decision.flag, decision.at, decision.reason), examining=True)
    one = Examination(
        attempt=decision.attempt,
        at=decision.at,
        flag=decision.flag,
        cause=decision.cause,
        step=decision.step,
        looked_for=decision.looked_for,
    )
    return replace(moved, retry=plan, examination=one, unkillable=False)


def _finished(job: Job, decision: de.Finish) -> Job:
    moved = job.moved(Move.REST if decision.by_user else Move.FINISH, decision.at, decision.reason)
    incident = moved.incident
    if incident and not incident.closed:
        incident = replace(incident, outcome="stopped")
    plan = _plan(job, decision.flag, decision.at, decision.reason) if decision.by_user else None
    course = job.course.unclear(decision.at) if decision.by_user else job.course.helped(decision.at)
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


def _with_incident(job: Job, flag: RedFlag | None, decision: str) -> Job:
    if flag is None or flag.severity is not Severity.CRITICAL or job.attempt is None:
        return job
    attempt = job.attempt
    if job.incident and job.incident.attempt == attempt.number:
        return job
    incident = Incident(
        id=f"{job.name}-{attempt.number}",
        job=job.name,
        attempt=attempt.number,
        flag=flag,
        decision=decision,
        last_step=attempt.last_step,
        last_step_at=attempt.last_step_at,
    )
    return replace(job, incident=incident)
