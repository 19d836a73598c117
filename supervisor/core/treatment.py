"""How the remedies of a job change with what happened and with what was decided; it chooses none.

A decision takes effect here at once, as everywhere: the remedies of a retry are in force before anything is launched.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.budget import Ledger
from supervisor.core.course import Trial
from supervisor.core.job import Attempt, Job
from supervisor.core.moments import Moment
from supervisor.core.resorts import ResortTaken

SAID_CHARACTERS = 100
SETTINGS_KEPT = 20


def heard(job: Job, attempt: Attempt, event: ev.AgentSaid) -> Job:
    """Return the job after the agent told what trains in it, or what it has set there."""
    facts = event.facts
    match event.word:
        case ev.Word.CLAIMED:
            return replace(job, torch=job.torch or isinstance(facts.get("torch"), str))
        case ev.Word.PATCHED:
            return replace(job, torch=True, attempt=replace(attempt, patched=True))
        case ev.Word.PLAN:
            framework = facts.get("framework")
            job = replace(job, framework=framework if isinstance(framework, str) else job.framework)
            return _renumbered(job, facts.get("batches_per_epoch"))
        case ev.Word.SETTING_ASKED:
            asked = dict.fromkeys((*job.asked, str(facts.get("setting"))))
            return replace(job, asked=tuple(asked)[:SETTINGS_KEPT])
        case ev.Word.REMEDY_APPLIED:
            remedies = facts.get("remedies")
            named = [str(one) for one in remedies] if isinstance(remedies, list) else []
            return replace(job, course=job.course.confirmed(named, str(facts.get("set", ""))[:SAID_CHARACTERS]))
        case _:
            return job


def _renumbered(job: Job, batches: object) -> Job:
    """Return the job after a plan: where an epoch has another number of batches now, steps are counted anew."""
    if isinstance(batches, bool) or not isinstance(batches, int) or batches <= 0 or batches == job.batches_per_epoch:
        return job
    before, job = job.batches_per_epoch, replace(job, batches_per_epoch=batches)
    if before is None:
        return job
    factor = batches / before
    return replace(job, renumbered=True, ledger=job.ledger.rescaled(factor), course=job.course.rescaled(factor))


def past_the_trouble(job: Job, step: int, at: Moment) -> Job:
    """Return the job after a step: one far enough beyond the trouble shows that the remedy helped."""
    trial = job.course.open_trial
    if trial is None or trial.attempt > job.number:
        return job
    resumed = job.attempt.resume_from if job.attempt is not None else None
    trouble = trial.step if trial.step is not None else (resumed.step or 0) if resumed is not None else 0
    if step < trouble + job.limits.remedies.helped_after_steps:
        return job
    return replace(job, course=job.course.helped(at))


def taken_back(job: Job, decision: de.Stop) -> Job:
    """Return the job with the remedy given up that a planned restart is to end."""
    if decision.takes_back is None:
        return job
    course = job.course.helped(decision.at).without(decision.takes_back)
    return replace(job, course=replace(course, backs=course.backs + 1))


def spent(job: Job, decision: de.Retry) -> Ledger:
    """Return the account after a retry."""
    if decision.counts:
        known = _progress_known(job, decision.at)
        return job.ledger.restarted(decision.at, job.limits.budget, progress_known=known, cause=decision.cause or "")
    return job.ledger if decision.cause is None else job.ledger.restarted_free()


def treated(job: Job, decision: de.Retry) -> Job:
    """Return the job with the remedy of a retry, and what that says of the one before."""
    if decision.cause is None or decision.remedy is None or decision.flag is None or job.attempt is None:
        return job
    trial = Trial(
        attempt=decision.attempt + 1,
        at=decision.at,
        cause=decision.cause,
        remedy=decision.remedy,
        step=decision.step,
        reason=decision.why or "",
    )
    course = job.course.failed(decision.cause, decision.at).taken(trial, decision.card)
    incident = job.incident
    if incident is not None and incident.attempt == decision.attempt:
        incident = replace(incident, cause=decision.cause, remedy=decision.remedy, remedy_why=decision.why)
        incident = replace(incident, finding=incident.finding or decision.finding)
    return replace(job, course=course, incident=incident)


def resort_taken(job: Job, decision: de.LastResort) -> Job:
    """Return the job with a last resort under way."""
    one = ResortTaken(kind=decision.kind, command=decision.command, at=decision.at, attempt=decision.attempt)
    return replace(job, resorts=(*job.resorts, one), reason=decision.reason)


def resort_ended(job: Job, event: ev.ResortEnded) -> Job:
    """Return the job after word of what came of a last resort."""
    last = job.resorts[-1] if job.resorts else None
    if last is None or last.kind != event.kind or last.ended_at is not None:
        return job
    ended = replace(last, ended_at=event.at, done=event.done, said=event.said)
    said = f"`{shlex.join(last.command)}` {'done' if event.done else 'failed'}" + (
        f": {event.said}" if event.said else ""
    )
    return replace(job, resorts=(*job.resorts[:-1], ended), reason=said)


def triage_begun(job: Job, decision: de.Triage) -> Job:
    """Return the job with the replays of its bad step under way."""
    if job.examination is None:
        return job
    one = replace(job.examination, began_at=decision.at, resume_from=decision.resume_from)
    return replace(job, examination=one, reason=decision.reason)


def triage_ended(job: Job, event: ev.TriageEnded) -> Job:
    """Return the job after word of what a triage found; the incident keeps it, whatever it is worth."""
    one, incident = job.examination, job.incident
    if one is None or one.attempt != event.attempt or not one.replaying:
        return job
    if incident is not None and incident.attempt == event.attempt:
        incident = replace(incident, finding=event.finding)
    ended = replace(one, ended_at=event.at, finding=event.finding)
    return replace(job, examination=ended, incident=incident, unkillable=False)


def _progress_known(job: Job, at: Moment) -> bool:
    """Whether it can be said that the attempt made progress or made none.

    An attempt that was never seen to step may have worked for hours without a hook; one that died young has not.
    """
    attempt = job.attempt
    if attempt is None or attempt.launch_error is not None or attempt.last_step is not None:
        return True
    young = at.seconds_since(attempt.launched_at) < job.limits.budget.settle_s
    return young or job.ledger.furthest_step is not None
