"""The fold of a job over events: its state after one happened, and after what the rules and the losses showed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from typing_extensions import assert_never

from supervisor.core import events as ev
from supervisor.core.attempt.absences import moved_on
from supervisor.core.checkpoints.checkpoint import BEGINNING_ASKED, Checkpoint, Verdict
from supervisor.core.checkpoints.loss_curve import first_curve, went_on_by_losses
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag
from supervisor.core.foreign_values import PATH_CHARS_MAX, as_int, as_list, as_message, as_text
from supervisor.core.job import (
    ALIVE,
    ENDED,
    Attempt,
    DesiredState,
    Job,
    Move,
    Phase,
    RetryPlan,
)
from supervisor.core.memory.shortage import read_shortage
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage, StepRecord
from supervisor.core.remedies.trials import Course
from supervisor.core.scale import Scale, on_training, steps_between
from supervisor.core.tuning.ordered_starts import (
    fold_start_asked,
    without_orders,
)

APPLIED_CHARACTERS = 100
SETTINGS_KEPT = 20
SHORTAGE_CHARACTERS = 2000
"""Within which torch's message names its figures: an older one is cut off."""
SILENT_START_S = 120.0
"""Longer than imports and loading a data set take until a hooked training makes its first report."""

UNWATCHED_SAVES_S = 86_400.0
"""For so long a training may have saved after the last entry of the record, while no daemon ran."""


def after_event(job: Job, event: ev.Event) -> Job:
    """Return the job after an event about it; events about other jobs or attempts leave it as it is."""
    if isinstance(event, ev.ClockStepped):
        return _fold_clock_step(job, event)
    if isinstance(event, ev.DaemonAway):
        return _extend_limits(job, event)
    if isinstance(event, ev.UserRequest):
        return _fold_request(job, event) if event.job == job.name else job
    if not isinstance(event, ev.AttemptEvent) or event.job != job.name:
        return job
    if isinstance(event, ev.EvidenceTaken):
        return _keep_evidence(job, event)
    if isinstance(event, ev.StartAsked):
        return fold_start_asked(job, event)
    if job.attempt is None or event.attempt != job.attempt.number:
        return job
    return _attempt_event(job, job.attempt, event)


def _attempt_event(job: Job, attempt: Attempt, event: ev.AttemptEvent) -> Job:
    match event:
        case ev.Launched() | ev.LaunchFailed() | ev.Exited() | ev.HostLost():
            return replace(job, attempt=_fold_lifecycle(attempt, event))
        case ev.StepsMade():
            return _fold_steps(job, attempt, event)
        case ev.AgentReported() | ev.StageEntered():
            job = _fold_report(job, attempt, event) if isinstance(event, ev.AgentReported) else job
            attempt = job.attempt or attempt
            job = replace(job, attempt=replace(attempt, train_ended=_has_train_ended(attempt, event)))
            return _begin_loop(job, event) if isinstance(event, ev.StageEntered) else job
        case ev.ResortEnded():
            return _end_resort(job, event)
        case ev.TriageEnded():
            return _end_triage(job, event)
        case ev.EvidenceTaken() | ev.Signalled() | ev.ResumePointFound():
            return _fold_result(job, event)
        case ev.OutputSeen() | ev.ProcessesRead() | ev.CheckpointSeen() | ev.PeerStageSeen():
            return _fold_observation(job, attempt, event)
        case ev.CheckpointNotKept() | ev.CheckpointsClosed() | ev.ExistingFound():
            return job
        case ev.RecorderIdle() | ev.SupervisionChanged() | ev.Continued() | ev.StartAsked() | ev.PeerWaitsSeen():
            return job
    assert_never(event)


def _fold_observation(
    job: Job, attempt: Attempt, event: ev.OutputSeen | ev.ProcessesRead | ev.CheckpointSeen | ev.PeerStageSeen
) -> Job:
    """Return the job after output, a process reading, a checkpoint or the stage elsewhere of the attempt was seen."""
    match event:
        case ev.OutputSeen():
            failed = any(finding.fault is FaultClass.MIOPEN for finding in event.findings)
            return replace(job, miopen_failed=True) if failed else job
        case ev.ProcessesRead():
            return _keep_kernel_waits(job, attempt, event)
        case ev.CheckpointSeen():
            return _fold_verdict(job, attempt, event.checkpoint)
        case ev.PeerStageSeen():
            return _begin_elsewhere(job, attempt, event)
    assert_never(event)


def _fold_verdict(job: Job, attempt: Attempt, checkpoint: Checkpoint) -> Job:
    """Return the job after a verdict: a proven checkpoint that this attempt saved is progress."""
    if checkpoint.verdict is not Verdict.PROVEN or checkpoint.saved_unix_s < attempt.launched_at.unix_s:
        return job
    if checkpoint.step is None and attempt.went_on is False:
        return job  # restarted from the beginning, it may save the same steps repeatedly
    return replace(job, ledger=job.ledger.saved(on_training(checkpoint.step), checkpoint.saved_unix_s))


def _fold_result(job: Job, event: ev.EvidenceTaken | ev.Signalled | ev.ResumePointFound) -> Job:
    """Return the job after the result of a decision was reported; a repeated or late result changes nothing."""
    match event:
        case ev.EvidenceTaken():
            return _keep_evidence(job, event)
        case ev.Signalled():
            if job.stop is None or job.stop.signalled_at is not None:
                return job
            return replace(job, stop=replace(job.stop, signalled_at=event.at))
        case ev.ResumePointFound():
            if job.phase is not Phase.BACKOFF or job.retry is None or job.retry.resume_point is not None:
                return job
            needs_others = job.needs_others or event.point.needs_others
            return replace(job, retry=replace(job.retry, resume_point=event.point), needs_others=needs_others)
    assert_never(event)


def _keep_evidence(job: Job, event: ev.EvidenceTaken) -> Job:
    """Keep the evidence folder; that of a crash may be reported while the next attempt already runs."""
    if job.incident is None or job.incident.attempt != event.attempt:
        return job
    return replace(job, incident=replace(job.incident, evidence=event.folder))


def _keep_kernel_waits(job: Job, attempt: Attempt, event: ev.ProcessesRead) -> Job:
    """Keep the threads that wait in the kernel, of an attempt that was sent SIGKILL; of any other they mean nothing."""
    waits = event.reading.waits
    if job.phase is not Phase.KILLING or not waits or waits == attempt.waits:
        return job
    return replace(job, attempt=replace(attempt, waits=waits))


def _fold_lifecycle(attempt: Attempt, event: ev.Launched | ev.LaunchFailed | ev.Exited | ev.HostLost) -> Attempt:
    match event:
        case ev.Launched():
            return replace(attempt, shim_pid=event.shim_pid, training_pid=event.training_pid)
        case ev.LaunchFailed():
            return replace(attempt, launch_error=event.error, launch_shortage=event.shortage)
        case ev.Exited():
            return replace(attempt, exit=event.status)
        case ev.HostLost():
            return replace(attempt, host_lost=event.reason)
    assert_never(event)


def _has_train_ended(attempt: Attempt, event: ev.AgentReported | ev.StageEntered) -> bool:
    """Whether the training has ended; the same process may train again after that.

    Its line in agent.jsonl may be lost, as on a full disk: an agent that reports every stage has reported this one too.
    """
    if isinstance(event, ev.StageEntered):
        return event.ends_training or (attempt.train_ended and event.stage not in (Stage.SETUP, Stage.WARMUP))
    return event.agent_event is ev.AgentEvent.TRAIN_END or (
        attempt.train_ended and event.agent_event is not ev.AgentEvent.PLAN
    )


def _begin_loop(job: Job, event: ev.StageEntered) -> Job:
    """Return the job after a stage began: one whose steps are not seen runs from there, before its first call ends."""
    looping = event.stage is Stage.LOOP and job.phase is Phase.STARTING
    return job.moved(Move.STEP, event.at) if looping else job


def _begin_elsewhere(job: Job, attempt: Attempt, event: ev.PeerStageSeen) -> Job:
    """Return the job of a node without rank 0: its attempt runs once rank 0 has made a step on another node."""
    if job.phase is not Phase.STARTING or attempt.over or not (event.stage.stepped or event.stage.stage is Stage.LOOP):
        return job
    if job.incident is not None and not job.incident.closed and job.incident.attempt < attempt.number:
        job = replace(job, incident=job.incident.stepping_again(event.at))
    return job.moved(Move.STEP, event.at)


def _fold_clock_step(job: Job, event: ev.ClockStepped) -> Job:
    """Return the job after the wall clock jumped; after a jump back, new checkpoints must not look older.

    The attempt's launch is given the time that the clock would have shown with its present setting.
    """
    if not event.by_s < 0 or (job.began_unix_s is None and job.attempt is None):
        return job
    return _after_set_back(job, event.at.unix_s - event.by_s, lambda unix_s: unix_s + event.by_s)


def after_earlier_clock(job: Job, now_unix_s: float, written_until_unix_s: float | None) -> Job:
    """Return the job of a record whose newest entry is later than the clock, which was set back while no daemon ran.

    How far it was set back is not known after a reboot: what was saved meanwhile may be later than the record.
    """
    if written_until_unix_s is None or written_until_unix_s <= now_unix_s:
        return job
    return _after_set_back(job, written_until_unix_s + UNWATCHED_SAVES_S, lambda unix_s: min(unix_s, now_unix_s))


def _after_set_back(job: Job, before_unix_s: float, reckon: Callable[[float], float]) -> Job:
    """Return the job after the clock was set back from a time; `reckon` gives an earlier one by its present setting."""
    began, attempt = job.began_unix_s, job.attempt
    if attempt is not None:
        launched_at = Moment(attempt.launched_at.monotonic_s, reckon(attempt.launched_at.unix_s))
        attempt = replace(attempt, launched_at=launched_at)
    return replace(
        job,
        began_unix_s=None if began is None else reckon(began),
        attempt=attempt,
        clock_before_unix_s=max(before_unix_s, job.clock_before_unix_s or before_unix_s),
    )


def _extend_limits(job: Job, event: ev.DaemonAway) -> Job:
    """Return the job after the daemon did not run: time limits are extended by its absence."""
    order, examined = job.stop, job.triage
    if order is not None:
        signalled_at = order.signalled_at and moved_on(order.signalled_at, event)
        killed_at = order.killed_at and moved_on(order.killed_at, event)
        order = replace(order, at=moved_on(order.at, event), signalled_at=signalled_at, killed_at=killed_at)
    if examined is not None and examined.replaying and examined.began_at is not None:
        examined = replace(examined, began_at=moved_on(examined.began_at, event))
    resorts = tuple(
        resort if resort.ended_at else replace(resort, at=moved_on(resort.at, event)) for resort in job.resorts
    )
    return replace(job, stop=order, triage=examined, resorts=resorts)


def _fold_request(job: Job, event: ev.UserRequest) -> Job:
    match event.ask:
        case ev.Ask.START:
            started = replace(job, desired_state=DesiredState.RUN, shutting_down=False)
            return _fold_start_request(without_orders(started), event)
        case ev.Ask.STOP:
            return replace(without_orders(job), desired_state=DesiredState.STOP, restart_asked=False, fresh_asked=False)
        case ev.Ask.RESTART:
            started = _fold_request(job, replace(event, ask=ev.Ask.START))
            alive = job.phase in ALIVE
            fresh = (alive and event.fresh) or (started.awaits_triage and started.fresh_asked)
            return replace(started, restart_asked=alive, fresh_asked=fresh)
        case ev.Ask.SHUT_DOWN:
            return replace(job, shutting_down=True)
    assert_never(event.ask)


def _fold_start_request(job: Job, event: ev.UserRequest) -> Job:
    reason = f"started by {event.by}"
    if job.awaits_triage and job.triage is not None:
        unwanted = replace(job.triage, unwanted=True)
        return replace(job, triage=unwanted, fresh_asked=job.fresh_asked or event.fresh)
    if job.phase is Phase.BACKOFF and job.retry is not None:
        point = BEGINNING_ASKED if event.fresh else job.retry.resume_point
        return replace(job, retry=replace(job.retry, not_before=event.at, resume_point=point))
    if job.phase not in ENDED:
        return job
    course = Course() if event.fresh else job.course.forgiven(job.number)
    job = replace(job, ledger=job.ledger.forgiven(), course=course, resorts=(), triage=None)
    is_over = job.phase is Phase.FINISHED and job.retry is None
    if event.fresh or is_over or job.attempt is None:
        return replace(job.moved(Move.WAKE, event.at, reason), retry=None)
    plan = job.retry or RetryPlan(not_before=event.at, reason=reason)
    return replace(
        job.moved(Move.RESUME, event.at, reason),
        retry=replace(plan, not_before=event.at, resume_point=None, awaits_triage=False),
    )


def _count_progress(job: Job, attempt: Attempt, event: ev.StepsMade) -> Job:
    """Return the job with its progress: a step whose loss is not finite is none, and shows of no remedy that it helped.

    A program that loads a spoilt file of its own goes on from there in each attempt, ever further.
    """
    sound = (record.step for record in event.records if record.loss is None or math.isfinite(record.loss))
    furthest = max(sound, default=None)
    if furthest is None:
        return job
    job = replace(job, ledger=job.ledger.stepped(attempt.place_of(furthest)))
    return _settle_trial(job, attempt, furthest, event.at)


def _fold_steps(job: Job, attempt: Attempt, event: ev.StepsMade) -> Job:
    if event.rank != 0 or not event.records:
        return job
    first, last = event.records[0], event.records[-1]
    attempt = _keep_newest_step(_locate_first_step(attempt, event), first, last)
    job = _count_progress(replace(job, attempt=attempt), attempt, event)
    if job.resorts and job.ledger.in_a_row == 0:
        job = replace(job, resorts=())
    if job.incident and not job.incident.closed and job.incident.attempt < attempt.number:
        again = job.incident.stepping_again(
            first.at, attempt.went_on_from, went_on=attempt.went_on, own_file=attempt.own_file
        )
        job = replace(job, incident=again)
    return job.moved(Move.STEP, event.at) if job.phase is Phase.STARTING else job


def after_first_losses(job: Job, losses: Iterable[float | None]) -> Job:
    """Return the job once its attempt made its first losses: they may show whether it resumed or restarted.

    Those of a training from the beginning are kept for comparison.
    """
    attempt, now = job.attempt, first_curve(losses)
    if attempt is None or now is None:
        return job
    if attempt.resume_from is None:
        from_beginning = attempt.first_step == 1 and not attempt.loads_itself
        return replace(job, start_curve=now) if from_beginning and job.start_curve is None else job
    if attempt.went_on is not None:
        return job
    on = went_on_by_losses(job.start_curve, attempt.resume_curve, now)
    if on is None:
        return job
    # The position in the training of an attempt that restarted is not known any more.
    counts_itself = on is False and attempt.first_step != 1
    scale = Scale.ATTEMPT if counts_itself else Scale.TRAINING if on is False else attempt.scale
    attempt = replace(attempt, went_on=on, scale=scale)
    incident = job.incident
    if incident is not None and incident.attempt < attempt.number:
        incident = incident.went_on_at(attempt.went_on_from, went_on=on)
    return replace(job, attempt=attempt, incident=incident)


def after_silent_start(job: Job, now: Moment, lived_s: float) -> Job:
    """Return the job whose process has lived for `lived_s` without a report: it runs after `SILENT_START_S`.

    Where the attempts before made steps, the first step of this one is waited for: only it shows what was lost.
    """
    attempt, incident = job.attempt, job.incident
    open_incident = incident if incident is not None and not incident.closed else None
    if job.phase is not Phase.STARTING or attempt is None or attempt.over or lived_s < SILENT_START_S:
        return job
    if open_incident is not None and open_incident.attempt < attempt.number:
        if open_incident.last_step is not None:
            return job
        job = replace(job, incident=open_incident.running_since(attempt.launched_at))
    return job.moved(Move.STEP, now)


def _locate_first_step(attempt: Attempt, event: ev.StepsMade) -> Attempt:
    """Return the attempt with the position that its first step implies, unless the agent has reported it."""
    if attempt.last_step is not None:
        return attempt
    first = None if event.lost else event.records[0].step
    if attempt.scale is None:
        # Steps reported without a scale are the training's count: so frameworks and scripts report them.
        attempt = replace(attempt, scale=Scale.TRAINING)
        if attempt.resume_from is not None and attempt.went_on is None and first is not None:
            attempt = replace(attempt, went_on=first > 1 or attempt.resume_from.step == 0)
    return replace(attempt, first_step=first)


def _keep_newest_step(attempt: Attempt, first: StepRecord, last: StepRecord) -> Attempt:
    return replace(
        attempt,
        first_step_at=attempt.first_step_at or first.at,
        last_step=last.step,
        last_step_at=last.at,
        epoch=attempt.epoch if last.epoch is None else last.epoch,
        loss=last.loss,
    )


def after_flags(job: Job, flags: Iterable[RedFlag]) -> Job:
    """Return the job after its rules were evaluated: a cleared shadow flag is recorded again when it returns."""
    if not job.shadows:
        return job
    standing = job.shadows & {flag.key for flag in flags if flag.shadow}
    return job if standing == job.shadows else replace(job, shadows=standing)


def _resume_later(job: Job, before: Attempt) -> Job:
    """Return the job once its checkpoint was loaded; `before`, it may have made steps of earlier trainings again."""
    incident = job.incident
    if before.went_on is not False or incident is None or incident.attempt >= before.number:
        return job
    given, last = before.resume_from, before.last_step
    is_before = given is not None and given.step is not None and last is not None and last <= given.step
    return replace(job, incident=incident.resumed_later(before.steps_made if is_before else None))


def _fold_report(job: Job, attempt: Attempt, event: ev.AgentReported) -> Job:
    """Return the job after the agent reported what trains in it, or what it has set there."""
    facts = event.facts
    match event.agent_event:
        case ev.AgentEvent.CLAIMED:
            torch = as_text(facts.get("torch"))
            job = replace(job, torch=job.torch or isinstance(facts.get("torch"), str))
            return replace(job, attempt=replace(attempt, torch=torch or attempt.torch))
        case ev.AgentEvent.EXCEPTION:
            shortage = read_shortage(as_message(facts.get("message"), SHORTAGE_CHARACTERS) or "")
            return job if shortage is None else replace(job, attempt=replace(attempt, shortage=shortage))
        case ev.AgentEvent.PATCHED:
            return replace(job, torch=True, attempt=replace(attempt, patched=True))
        case ev.AgentEvent.PLAN:
            framework = facts.get("framework")
            job = replace(job, framework=framework if isinstance(framework, str) else job.framework)
            job = _with_adjustable(job, as_list(facts.get("adjusts")))
            return _rescale_steps(job, facts.get("batches_per_epoch"))
        case ev.AgentEvent.COUNTING if event.rank in (None, 0):
            return replace(job, attempt=_set_scale(attempt, facts))
        case ev.AgentEvent.RESUMED:
            return _resume_later(replace(job, attempt=replace(attempt, went_on=True)), attempt)
        case ev.AgentEvent.SETTING_ASKED:
            return _with_adjustable(job, [facts.get("setting")])
        case ev.AgentEvent.REMEDY_APPLIED:
            remedies = facts.get("remedies")
            named = [str(remedy) for remedy in remedies] if isinstance(remedies, list) else []
            return replace(job, course=job.course.confirmed(named, str(facts.get("set", ""))[:APPLIED_CHARACTERS]))
        case ev.AgentEvent.TUNING:
            return replace(job, attempt=replace(attempt, has_lent_block=facts.get("lent") is True))
        case _:
            return job


def _with_adjustable(job: Job, settings: Iterable[object]) -> Job:
    """Return the job with further settings that the hook or the script can change."""
    names = [name for setting in settings if (name := as_text(setting)) is not None]
    return replace(job, adjustable=tuple(dict.fromkeys((*job.adjustable, *names)))[:SETTINGS_KEPT])


def _set_scale(attempt: Attempt, facts: Mapping[str, object]) -> Attempt:
    """Return the attempt with the scale of its steps that the agent reported; what it does not know stays unchanged."""
    scale, resumed = facts.get("scale"), facts.get("resumed")
    if attempt.went_on is False or scale not in (Scale.TRAINING.value, Scale.ATTEMPT.value):
        return attempt  # a new daemon reads the reports again: what was concluded since holds
    went_on = resumed if isinstance(resumed, bool) and attempt.resume_from is not None else attempt.went_on
    return replace(attempt, scale=Scale(scale), went_on=went_on, own_file=_find_own_file(attempt, facts))


def _find_own_file(attempt: Attempt, facts: Mapping[str, object]) -> str | None:
    """Return the file that an attempt loaded in place of the one it was given: another path, of another step.

    A copy that was put where the program looks has another path too, and the same step.
    """
    given, path, first = attempt.resume_from, as_text(facts.get("path"), PATH_CHARS_MAX), as_int(facts.get("first"), 1)
    if given is None or given.step is None or path is None or first is None or facts.get("resumed") is not True:
        return attempt.own_file
    is_given = any(known and f"{path}/".startswith(f"{known.rstrip('/')}/") for known in (given.path, given.source))
    return attempt.own_file if is_given or first == given.step + 1 else path


def _rescale_steps(job: Job, batches: object) -> Job:
    """Return the job after a plan: where an epoch has another number of batches now, steps are rescaled."""
    if isinstance(batches, bool) or not isinstance(batches, int) or batches <= 0 or batches == job.batches_per_epoch:
        return job
    before, job = job.batches_per_epoch, replace(job, batches_per_epoch=batches)
    if before is None:
        return job
    factor = batches / before
    return replace(job, renumbered=True, ledger=job.ledger.rescaled(factor), course=job.course.rescaled(factor))


def _settle_trial(job: Job, attempt: Attempt, step: int, at: Moment) -> Job:
    """Return the job after a step: one far enough beyond the fault shows that the remedy helped.

    Where the step of the fault is not known, the steps count that this attempt made itself.
    """
    trial = job.course.open_trial
    if trial is None or trial.attempt > job.number:
        return job
    if trial.step is None:
        beyond = attempt.made_here(step)
    else:
        beyond = steps_between(on_training(trial.step), attempt.place_of(step))
    if beyond is None or beyond < job.limits.remedies.helped_after_steps:
        return job
    return replace(job, course=job.course.helped(at))


def _end_resort(job: Job, event: ev.ResortEnded) -> Job:
    """Return the job after the result of a last resort was reported."""
    last = job.resorts[-1] if job.resorts else None
    if last is None or last.kind != event.kind or last.ended_at is not None:
        return job
    ended = replace(last, ended_at=event.at, done=event.done, output=event.output)
    outcome = f"`{shlex.join(last.command)}` {'done' if event.done else 'failed'}" + (
        f": {event.output}" if event.output else ""
    )
    return replace(job, resorts=(*job.resorts[:-1], ended), reason=outcome)


def _end_triage(job: Job, event: ev.TriageEnded) -> Job:
    """Return the job after the finding of a triage was reported; the incident keeps it, conclusive or not."""
    triage_state, incident = job.triage, job.incident
    if triage_state is None or triage_state.attempt != event.attempt or not triage_state.replaying:
        return job
    if incident is not None and incident.attempt == event.attempt:
        incident = replace(incident, finding=event.finding)
    ended = replace(triage_state, ended_at=event.at, finding=event.finding)
    return replace(job, triage=ended, incident=incident, unkillable=False)
