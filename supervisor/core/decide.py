"""The next decision about a job, as a pure function of what is known: after a crash it decides the same.

The order is the law: an attempt that is over is settled first, the user's request outranks the rules, a deadline that
has passed outranks a new flag, and flags come last.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core.checkpoints.checkpoint import ResumePoint
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.job import (
    ALIVE,
    LAUNCH,
    MACHINE_SHORTAGE,
    UNKILLABLE,
    Attempt,
    DesiredState,
    Job,
    Phase,
    RetryPlan,
    StopOrder,
)
from supervisor.core.judge import decide_on_unreported, merge_critical, merge_spoiling
from supervisor.core.moments import Moment
from supervisor.core.readings import KernelWait
from supervisor.core.remedies.choose import back_to, choose
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.gpu_memory import GpuMemory, held_words, still_held
from supervisor.core.remedies.last_resorts import Resort, find_due, would_help
from supervisor.core.retry import retry
from supervisor.core.rules.advisory.other_trainings import OtherTrainings
from supervisor.core.rules.crash import WRAPPER, Crash
from supervisor.core.rules.crash_diagnosis import crash_diagnosis
from supervisor.core.rules.non_finite_loss import NonFiniteLoss, spoilt
from supervisor.core.start_failure import (
    COMMAND,
    launch_failure,
)
from supervisor.core.triage.state import TriageState
from supervisor.core.tuning.lent_block import end_lent_block, settle_lent_block
from supervisor.core.tuning.ordered_starts import end_failed_start, end_for_order, refuse_environment, settle_start

STOP_SLACK_S = 10.0
"""Time for evidence and signalling on top of the training's own limits, before SIGKILL."""
CONTINUE_WAIT_S = 10.0
"""From SIGCONT until an attempt is stopped whose processes are still stopped: two readings of them or more."""
WAITS_NAMED = 3
"""Waits in the kernel that a message names."""


def kill_overdue(job: Job, order: StopOrder, now: Moment) -> de.Decision | None:
    """Return the decision to kill, once an attempt has had its time to save and to end."""
    allowed_s = job.limits.grace_s + (job.limits.save_s if order.save else 0.0)
    # Evidence comes before the signal; should neither come about, the time runs from the decision.
    since, slack_s = (order.signalled_at, 0.0) if order.signalled_at else (order.at, STOP_SLACK_S)
    if now.seconds_since(since) < allowed_s + slack_s:
        return None
    reason = f"still running {allowed_s:.0f} s after it was asked to end ({order.reason})"
    return de.Kill(at=now, job=job.name, attempt=job.number, reason=reason)


def decide_on_unkillable(job: Job, now: Moment, context: RemedyContext) -> de.Decision | None:
    """Warn that SIGKILL does not end a process, then try the last resorts that are allowed."""
    killed_at = job.stop.killed_at if job.stop else None
    resorts = _list_resorts(job, context)
    if job.unkillable:
        return _take_due_resort(job, now, resorts) if job.desired_state is DesiredState.RUN else None
    if killed_at is None or now.seconds_since(killed_at) < job.limits.kill_wait_s:
        return None
    waits, help_known = _describe_waits(job), would_help(resorts) or "a reboot ends it"
    exists = f"process still exists {job.limits.kill_wait_s:.0f} s after SIGKILL: {waits}; {help_known}"
    return _warn_unkillable(job, exists, now)


def warn_unkillable_replay(job: Job, triage_state: TriageState, now: Moment) -> de.Warn | None:
    """Warn of a replay that SIGKILL does not end."""
    if job.unkillable or not triage_state.overdue(now, job.limits.triage_s or 0.0):
        return None
    return _warn_unkillable(job, "a triage replay still exists after SIGKILL; a GPU reset or a reboot ends it", now)


def _warn_unkillable(job: Job, exists: str, now: Moment) -> de.Warn:
    message = f"{exists}; no other job starts on its GPU"
    flag = RedFlag(rule=UNKILLABLE, severity=Severity.CRITICAL, at=now, message=message)
    return de.Warn(at=now, job=job.name, attempt=job.number, flag=flag)


def _list_resorts(job: Job, context: RemedyContext) -> tuple[Resort, ...]:
    """Return the last resorts that can end its process: a GPU's reset ends no wait for a disk, and harms others.

    None is needed against one that is frozen: it ends once it is thawed.
    """
    if job.attempt is not None and any(wait.is_frozen for wait in job.attempt.waits):
        return ()
    return tuple(item for item in context.resorts if item.kind != "reset_gpu" or not _is_of_disk(job))


def _is_of_disk(job: Job) -> bool:
    """Whether every wait of its process that the kernel names is for a file system."""
    waits = job.attempt.waits if job.attempt is not None else ()
    return bool(waits) and all(wait.is_of_disk for wait in waits)


def _take_due_resort(job: Job, now: Moment, resorts: tuple[Resort, ...]) -> de.LastResort | None:
    """Return the last resort that is due against a process that SIGKILL does not end."""
    resort = find_due(resorts, job.resorts, now, job.limits.resort_s)
    return None if resort is None else _take_resort(job, resort, now, "SIGKILL does not end its process")


def resort_first(job: Job, kind: str, now: Moment, context: RemedyContext) -> de.LastResort | None:
    """Return the last resort that a retry begins with, where it was not taken yet and is still available."""
    if any(resort_taken.kind == kind for resort_taken in job.resorts):
        return None
    offered = (item for item in context.resorts if item.kind == kind and item.on and item.refused is None)
    resort = next(offered, None)
    return None if resort is None else _take_resort(job, resort, now, job.reason or "no other remedy is left")


def _take_resort(job: Job, resort: Resort, now: Moment, why: str) -> de.LastResort:
    reason = f"`{shlex.join(resort.command)}`: {why}"
    return de.LastResort(
        at=now, job=job.name, attempt=job.number, reason=reason, kind=resort.kind, command=resort.command
    )


def _describe_waits(job: Job) -> str:
    """Return which threads wait where in the kernel, or the likely reasons where none are known to."""
    return describe_waits(job.attempt.waits if job.attempt is not None else ()) or (
        "it waits in the kernel, most likely in the GPU driver, which only a GPU reset or a reboot ends, or "
        "the order to kill it was refused (see the daemon's log)"
    )


def describe_waits(waits: Sequence[KernelWait]) -> str | None:
    """Return which threads wait where in the kernel, and what ends that; None where none are known to."""
    if not waits:
        return None
    named = "; ".join(kernel_wait.words for kernel_wait in waits[:WAITS_NAMED])
    more = f" and {len(waits) - WAITS_NAMED} more" if len(waits) > WAITS_NAMED else ""
    if any(wait.is_frozen for wait in waits):
        return f"{named}{more}: it is frozen with its control group, and ends once that is thawed"
    if all(wait.is_of_disk for wait in waits):
        return f"{named}{more}: for a file system, which ends when its disk or server answers; no GPU reset does"
    if any(wait.is_of_disk is None for wait in waits):
        return f"{named}{more}, which only what it waits for, or a reboot, ends"
    return f"{named}{more}, which only a GPU reset or a reboot ends"


def decide_on_ended(
    job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment, context: RemedyContext
) -> de.Decision:
    """Decide about an attempt of which nothing runs any more."""
    number, stop, spoiling = attempt.number, job.stop, merge_spoiling(flags)
    if job.desired_state is DesiredState.STOP:
        return de.Finish(
            at=now, job=job.name, attempt=number, reason="stopped by its user", by_user=True, flag=spoiling
        )
    if stop is not None and stop.flag is None:
        return de.Retry(
            at=now,
            job=job.name,
            attempt=number,
            reason=stop.reason,
            not_before=now,
            flag=None if stop.refused_start is not None else spoiling,
            counts=False,
            refused_start=stop.refused_start,
        )
    without = settle_start(job, attempt, flags, now) or settle_lent_block(job, attempt, flags, now)
    if without is not None:
        return without
    cause = merge_critical((stop.flag if stop else None, _flag_failed_launch(attempt, now), *flags))
    if cause is not None:
        return retry(job, attempt, cause, now, context)
    return decide_on_unreported(job, flags, now) or _settle_unflagged(job, attempt, flags, now)


def _flag_failed_launch(attempt: Attempt, now: Moment) -> RedFlag | None:
    if attempt.launch_error is None:
        return None
    message = f"could not be launched: {attempt.launch_error}"
    same = launch_failure(attempt.launch_error)
    if same is not None:
        return RedFlag(
            rule=LAUNCH,
            severity=Severity.CRITICAL,
            at=now,
            message=message,
            start_failure=same,
            diagnosis=crash_diagnosis(COMMAND),
        )
    if attempt.launch_shortage is None:
        return RedFlag(rule=LAUNCH, severity=Severity.CRITICAL, at=now, message=message)
    short = f"this machine lacks {attempt.launch_shortage}; it is retried without counting against the restart budget"
    return RedFlag(
        rule=LAUNCH, severity=Severity.CRITICAL, at=now, message=f"{message}: {short}", fault=MACHINE_SHORTAGE
    )


def _explain_background(count: int | None) -> str:
    """Return what became of processes that a program had put into the background, and what to do about it."""
    if not count:
        return ""
    left, were = ("the program", "was") if count == 1 else (f"{count} programs", "were")
    return (
        f", and {left} that it left in the background {were} ended; if that is the training, have the command stay in "
        "the foreground"
    )


def _settle_unflagged(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment) -> de.Decision:
    """Decide about an end that no acting rule has flagged; only a known success is a finish."""
    if attempt.exit is not None and attempt.exit.clean:
        lost = next((f"; {flag.message}" for flag in flags if flag.rule == OtherTrainings.name), "")
        reason = f"the training exited with status 0{_explain_background(attempt.exit.in_background)}{lost}"
    elif any(flag.rule == Crash.name and flag.fault == WRAPPER for flag in flags):
        reason = f"the training had finished with status 0 before its wrapper {attempt.ending}"
    elif attempt.train_ended:
        reason = f"the training had finished before its process {attempt.ending}"
    else:
        reason = f"its process {attempt.ending}, and no rule acts on this"
        return de.GiveUp(at=now, job=job.name, attempt=attempt.number, reason=reason)
    return _remark(de.Finish(at=now, job=job.name, attempt=attempt.number, reason=reason), job, attempt, flags)


def _remark(finish: de.Finish, job: Job, attempt: Attempt, flags: Sequence[RedFlag]) -> de.Finish:
    """Return a finish that says where the last attempt does not show that the fault before it is mended.

    A program that loads its newest save may have loaded a spoilt one, of its last step: it makes no step and exits with
    status 0. The job has finished all the same, for its program may know why.
    """
    flag = next((flag for flag in flags if flag.rule == NonFiniteLoss.name and not flag.shadow), None)
    if flag is not None and spoilt(attempt.loss):
        words = f"its last loss, {attempt.loss} at step {attempt.last_step}, is not finite"
        flag = replace(flag, since=flag.since or attempt.last_step_at)
    elif (incident := job.incident) is not None:
        end, since = incident.find_unmended(attempt.number)
        if end is None:
            return finish
        words = f"it made no step since {end}"
        flag = replace(incident.flag, since=since, since_step=None)  # of steps as an earlier attempt has counted them
    else:
        return finish
    if flag.since is None:
        return replace(finish, reason=f"{finish.reason}; {words}")
    see = f"what it saved last may be spoilt, see `supervisorctl checkpoints {job.name}`"
    start = f"`supervisorctl start {job.name}` goes on from before it"
    return replace(finish, reason=f"{finish.reason}; {words}: {see}; {start}", unconfirmed=True, flag=flag)


NOTHING_KNOWN = RemedyContext()


def decide(
    job: Job,
    flags: Sequence[RedFlag],
    now: Moment,
    *,
    launch_allowed: bool = True,
    context: RemedyContext = NOTHING_KNOWN,
) -> de.Decision | None:
    """Return the next decision about `job`, or None where nothing is to be done.

    `flags` are the conclusions of the rules about the present attempt, worst first. `launch_allowed` is False while
    the daemon is shutting down or the machine is in no state to start anything (a full disk). `context` is the
    state of the machine that decides which remedies are available.
    """
    if job.phase in ALIVE and job.attempt is not None:
        return _decide_on_alive(job, job.attempt, flags, now, context)
    if job.replaying and job.triage is not None:
        return warn_unkillable_replay(job, job.triage, now)  # nothing else starts, and nothing is over, before it ends
    if job.desired_state is DesiredState.STOP and job.phase in (Phase.PENDING, Phase.BACKOFF):
        return de.Finish(at=now, job=job.name, attempt=job.number, reason="stopped by its user", by_user=True)
    if not launch_allowed or job.shutting_down:
        return None
    if job.phase is Phase.PENDING:
        return _launch_pending(job, now, context)
    return _after_backoff(job, now, context) if job.phase is Phase.BACKOFF else None


def _launch_pending(job: Job, now: Moment, context: RemedyContext) -> de.Decision:
    return de.Launch(
        at=now,
        job=job.name,
        attempt=job.next_number,
        resume_from=None,
        reason=job.reason or "start",
        memory=context.memory,
    )


def _after_backoff(job: Job, now: Moment, context: RemedyContext) -> de.Decision | None:
    plan = job.retry
    if job.awaits_triage and job.triage is not None and job.attempt is not None:
        return _decide_on_triage(job, job.attempt, job.triage, now, context)
    if plan is not None and plan.resort is not None:
        resort = resort_first(job, plan.resort, now, context)
        if resort is not None:
            return resort
    if any(resort_taken.busy(now, job.limits.resort_s) for resort_taken in job.resorts):
        return None
    if plan is None or plan.resume_point is None or now.seconds_since(plan.not_before) < 0:
        return None
    point, problem = plan.resume_point, job.environment_problem
    if problem is not None:
        without = refuse_environment(job, plan, problem, now)
        return without or _choose_after_refused(job, plan, problem, now, context)
    if not point.possible:
        return de.GiveUp(at=now, job=job.name, attempt=job.number, reason=point.reason)
    held = _find_held_memory(job, context)
    if held and now.seconds_since(job.since) < job.limits.gpu_memory_release_s:
        return None
    return _launch(job, point, held, now, context)


def _choose_after_refused(job: Job, plan: RetryPlan, problem: str, now: Moment, context: RemedyContext) -> de.Decision:
    """Decide the retry again where the environment that it would run in does not load what it resumes from.

    Nothing was launched, so that no budget is spent. A remedy that is not the environment itself is kept.
    """
    trial, incident, refused = job.course.open_trial, job.incident, job.course.environment
    reason = f"environment {refused} is skipped: {problem}"
    again = de.Retry(
        at=now,
        job=job.name,
        attempt=job.number,
        reason=reason,
        not_before=plan.not_before,
        counts=False,
        refused_environment=refused,
    )
    if trial is None or trial.attempt <= job.number or incident is None:
        return again
    again = replace(again, flag=incident.flag, cause=trial.cause, step=trial.step)
    if trial.remedy != "other_environment":
        held = next((item for item in job.course.in_force if item.attempt == trial.attempt), None)
        return replace(again, remedy=trial.remedy, why=trial.reason, gpu=None if held is None else held.gpu)
    course = job.course.never_began(now, problem)
    ended = job.ended(trial.cause, trial.step, incident.finding, trial.fault)
    choice = choose(course, job.limits.remedies, ended, context)
    if choice.remedy is None:
        why = f"{reason}; {choice.reason}; last: {incident.flag.message}"
        return de.GiveUp(at=now, job=job.name, attempt=job.number, reason=why, flag=incident.flag)
    why = f"{trial.reason}; skipped: {problem}; {choice.reason}"
    return replace(again, remedy=choice.remedy, why=why, gpu=choice.gpu, environment=choice.environment)


def _launch(
    job: Job, point: ResumePoint, held: tuple[GpuMemory, ...], now: Moment, context: RemedyContext
) -> de.Launch:
    reason = point.reason + point.moved_words
    if held:
        reason += (
            f"; {held_words(held)} still held {job.limits.gpu_memory_release_s:.0f} s after the previous attempt ended"
        )
    return de.Launch(
        at=now,
        job=job.name,
        attempt=job.next_number,
        resume_from=point.checkpoint,
        reason=reason,
        memory=context.memory,
        loads_itself=point.loads_itself,
        set_aside=point.newer,
        stand_in=point.stand_in,
        together=point.together,
    )


def _find_held_memory(job: Job, context: RemedyContext) -> tuple[GpuMemory, ...]:
    """Return the GPU memory that the ended attempt still holds."""
    if job.attempt is None or job.limits.gpu_memory_release_s <= 0:
        return ()
    return still_held(job.attempt.memory_before, context.memory)


def _decide_on_triage(
    job: Job, attempt: Attempt, triage_state: TriageState, now: Moment, context: RemedyContext
) -> de.Decision | None:
    """Start the triage once there is a state to replay from; decide the retry once it is over or impossible."""
    point = job.retry.resume_point if job.retry is not None else None
    needless = triage_state.unwanted or job.limits.triage_s is None or (point is not None and not point.possible)
    if triage_state.ended_at is not None or needless:
        return retry(job, attempt, triage_state.flag, now, context)
    if point is None or (
        _find_held_memory(job, context) and now.seconds_since(job.since) < job.limits.gpu_memory_release_s
    ):
        return None
    return de.Triage(
        at=now,
        job=job.name,
        attempt=attempt.number,
        reason=f"step {triage_state.step} is replayed, to know why its {triage_state.looked_for} became non-finite",
        step=triage_state.step,
        looked_for=triage_state.looked_for,
        resume_from=point.checkpoint,
    )


def _decide_on_alive(
    job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment, context: RemedyContext
) -> de.Decision | None:
    if attempt.over:
        return decide_on_ended(job, attempt, flags, now, context)
    if job.stop is not None and job.phase is Phase.STOPPING:
        return kill_overdue(job, job.stop, now)
    if job.phase is Phase.KILLING:
        return decide_on_unkillable(job, now, context)
    asked = _why_asked_to_end(job)
    if asked is not None:
        flag = merge_critical(flags)
        save = flag is None or flag.can_save
        return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=asked, save=save, flag=flag)
    return (
        end_failed_start(job, attempt, flags, now)
        or end_lent_block(job, attempt, flags, now)
        or _decide_on_flags(job, attempt, flags, now)
        or _return_to_gpu(job, attempt, now, context)
        or end_for_order(job, attempt, now)
    )


def _return_to_gpu(job: Job, attempt: Attempt, now: Moment, context: RemedyContext) -> de.Stop | None:
    """Plan a restart, at a step's end and saved, where a training on the CPU has its GPU again."""
    gpu = back_to(job.course, job.limits.remedies, context, now.seconds_since(attempt.launched_at))
    if gpu is None or job.phase is not Phase.RUNNING:
        return None
    reason = f"{gpu} has answered for {job.limits.remedies.back_after_s:.0f} s again: moving back from the CPU"
    return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=reason, save=True, takes_back="cpu_profile")


def _why_asked_to_end(job: Job) -> str | None:
    if job.desired_state is DesiredState.STOP:
        return "stopped by its user"
    if job.restart_asked:
        return "restart requested by its user"
    return "the daemon is stopping" if job.shutting_down else None


def _decide_on_flags(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment) -> de.Decision | None:
    flag = merge_critical(flags)
    if flag is None:
        return decide_on_unreported(job, flags, now)
    if all(item.stopped_pids for item in flags if item.severity is Severity.CRITICAL and not item.shadow):
        if attempt.continued_at is None:
            return _continue(job, flag, now)
        if now.seconds_since(attempt.continued_at) < CONTINUE_WAIT_S:
            return decide_on_unreported(job, flags, now)
    return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=flag.message, save=flag.can_save, flag=flag)


def _continue(job: Job, flag: RedFlag, now: Moment) -> de.Continue:
    """Let stopped processes go on, and tell so; the flag is a warning, since the attempt goes on."""
    what = (
        f"SIGCONT is sent to {', '.join(map(str, flag.stopped_pids))}; if that does not help it is stopped and resumed"
    )
    warning = replace(flag, severity=Severity.WARNING, message=f"{flag.message}. {what}")
    return de.Continue(
        at=now, job=job.name, attempt=job.number, reason=warning.message, flag=warning, pids=flag.stopped_pids
    )
