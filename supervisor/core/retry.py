"""The retry of an attempt that has failed: with which remedy, from when on, after a triage, or none at all."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core.checkpoints.checkpoint import describe_paths
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag
from supervisor.core.job import MACHINE_SHORTAGE, Attempt, Job
from supervisor.core.moments import Moment
from supervisor.core.remedies.causes import GPU_LOST, SLOW_START
from supervisor.core.remedies.choose import Choice, choose, help_against, put_back_first
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.own_file import OWN_FILES_AT_FAULT, blame_own_file, blame_unmoved, hint_at_own_files
from supervisor.core.remedies.trials import Trial
from supervisor.core.rules import cause_of
from supervisor.core.rules.crash_diagnosis import HOST_LOST, is_killed_from_outside
from supervisor.core.start_failure import (
    ABOUT_MODULE,
    ABOUT_NO_CHECKPOINT,
    NOT_STARTED,
    UNMOUNTED,
    hint_at_refused_load,
    is_passing,
)
from supervisor.core.triage.finding import Finding
from supervisor.core.triage.state import cause_after_triage, find_earlier_finding, looked_for

DISK_IS_FULL = "no room is left on a disk that it writes to"
RESTARTED_ALONE = {
    FaultClass.DISK_FULL.value: "restart without changes: no other checkpoint or setting makes room on the disk",
    HOST_LOST: "restart without changes: that the machine was lost is no sign of a fault in data or code",
}
"""Faults after which an attempt is started as before, wherever it was, and why."""
KILLED = "restart without changes: a SIGKILL from outside is no sign of a fault in data or code"
ABSENT_TRIES = 5
"""Starts in a row that may fail by what may be there again soon: a folder, or a module that it had imported before."""
BEING_INSTALLED = (
    f"it was there when the training made steps, and packages may be being installed: it is tried {ABSENT_TRIES} times"
)
"""Why a start is tried again that misses its command or a module."""
ABSENT_WAIT_S = 60.0
"""The longest wait between two of them: with the default waits they take two or three minutes."""
SAME_START_WAIT_S = 5.0
"""Before the last try of a start that failed twice in the same way: it comes at most once, so it need not wait long."""


def retry(job: Job, attempt: Attempt, flag: RedFlag, now: Moment, context: RemedyContext) -> de.Decision:
    """Retry with the next remedy for the cause, unless budget, exit status or remedies forbid it."""
    fault_step = attempt.training_step(flag.since_step)  # a replay finds a step by the training's count alone
    finding = _find_finding(job, attempt, flag, fault_step)
    cause = cause_after_triage(cause_of(flag), finding)
    earliest = _find_earliest(job, now)
    again = de.Retry(
        at=now, job=job.name, attempt=attempt.number, reason=flag.message, not_before=earliest, flag=flag, cause=cause
    )
    if (uncounted := _spare_budget(job, attempt, flag, again)) is not None:
        return uncounted
    step = _find_fault_step(attempt, flag, cause)
    ended = job.ended(cause, step, finding, flag.fault)
    choice = (
        _blame_files(job, attempt, flag, cause)
        or _choose_after_start(job, attempt, flag, context)
        or _restart_alone(job, flag)
        or _put_back(job, attempt, choose(job.course.failed(cause, now), job.limits.remedies, ended, context), context)
    )
    why_not = _why_not_again(job, attempt, choice, cause, now)
    if why_not is not None:
        reason = _explain_end(job, flag, cause, why_not, context)
        return de.GiveUp(at=now, job=job.name, attempt=attempt.number, reason=reason, flag=flag)
    again = replace(again, not_before=_shorten_wait(job, flag, again.not_before, now))
    if finding is None and (examine := _plan_triage(job, again, flag, cause, fault_step)) is not None:
        return examine
    return replace(
        again,
        remedy=choice.remedy,
        why=choice.reason,
        step=step,
        gpu=choice.gpu or _find_lost_gpu(flag, cause),
        finding=finding,
        environment=choice.environment,
        times=choice.times,
    )


def _find_lost_gpu(flag: RedFlag, cause: str) -> str | None:
    """Return the GPU that is lost, by the PCI address that the subject of its flag begins with; None for none."""
    return flag.subject.split(" ")[0] or None if cause == GPU_LOST else None


def _spare_budget(job: Job, attempt: Attempt, flag: RedFlag, again: de.Retry) -> de.Retry | None:
    """Return a retry that no budget counts and no remedy changes; None where it is none of these."""
    budget = job.limits.budget
    if flag.fault == MACHINE_SHORTAGE:
        wait_s = job.ledger.refused_wait_s(budget, f"{job.name} {job.number}")
        return replace(again, counts=False, not_before=again.at.plus(wait_s))
    return replace(again, counts=False) if _own_status(job, attempt) in budget.always_retry_exit_codes else None


def _own_status(job: Job, attempt: Attempt) -> int | None:
    """Return the exit status of an attempt that nothing of ours has ended."""
    return attempt.exit.code if attempt.exit is not None and job.stop is None else None


def _blame_files(job: Job, attempt: Attempt, flag: RedFlag, cause: str) -> Choice | None:
    """Return the end of the tries where the program loads a file by itself, or one could not be moved for it."""
    made = None if flag.since_step is None else attempt.made_here(flag.since_step)
    set_aside = attempt.set_aside if attempt.stand_in is not None else ()
    return blame_own_file(job.name, cause, attempt.own_file, attempt.resume_from, made) or blame_unmoved(
        job.name, _own_status(job, attempt), flag.message, set_aside
    )


def _choose_after_start(job: Job, attempt: Attempt, flag: RedFlag, context: RemedyContext) -> Choice | None:
    """Return the choice where the attempt before ended at its start in the same way; None where it did not."""
    last = job.course.again_at_start(attempt.number, flag.start_failure)
    if (blamed := _blame_newest_save(job, attempt, flag)) is not None or last is None:
        return blamed
    if _is_not_started(flag):
        return _choose_after_same_launch(job, flag)
    return _choose_after_same_start(job, attempt, flag, last, context)


def _blame_newest_save(job: Job, attempt: Attempt, flag: RedFlag) -> Choice | None:
    """Return the choice to do without the newest save where a program has failed twice with it; None elsewhere.

    It loads that by itself, and whether it is whole cannot be verified. It may crash by a signal as well as raise, or
    do now one, now the other. One save is moved: where that is not why, no other is.
    """
    before = job.course.list_at_start(attempt.number)
    is_due = flag.at_start and attempt.loads_itself and before and job.limits.remedies.allows("older_generation")
    if not is_due or any(trial.remedy == "older_generation" for trial in before):
        return None
    is_of_file = not ABOUT_NO_CHECKPOINT.match(flag.start_failure or "")
    if not is_of_file or is_killed_from_outside(flag) or is_passing(flag.message):
        return None
    return Choice(remedy="older_generation", reason="it failed before its first step twice with what it had saved last")


def _restart_alone(job: Job, flag: RedFlag) -> Choice | None:
    why = KILLED if is_killed_from_outside(flag) else RESTARTED_ALONE.get(flag.fault or "")
    return Choice(remedy="restart", reason=why) if why is not None and job.limits.remedies.allows("restart") else None


def _put_back(job: Job, attempt: Attempt, choice: Choice, context: RemedyContext) -> Choice:
    """Return the choice with a generation put into its own place before an older one is tried."""
    is_elsewhere = attempt.failed_from_copy and not job.resumes_in_place
    return put_back_first(choice, context) if is_elsewhere and job.limits.remedies.allows("restart") else choice


def _is_not_started(flag: RedFlag) -> bool:
    return (flag.start_failure or "").startswith(NOT_STARTED)


def _why_not_again(job: Job, attempt: Attempt, choice: Choice, cause: str, now: Moment) -> str | None:
    budget, code = job.limits.budget, _own_status(job, attempt)
    if code is not None and code in budget.never_retry_exit_codes:
        return f"status {code} is never retried (budget.never_retry_exit_codes)"
    return job.ledger.spent(now, budget, cause) or (choice.reason if choice.remedy is None else None)


def _explain_end(job: Job, flag: RedFlag, cause: str, why: str, context: RemedyContext) -> str:
    taken = [resort_taken.kind for resort_taken in job.resorts]
    full = flag.fault == FaultClass.DISK_FULL.value
    hint = DISK_IS_FULL if full else help_against(cause, job.limits.remedies, context, taken)
    return "; ".join(filter(None, (why, hint, f"last: {flag.message}")))


def _choose_after_same_launch(job: Job, flag: RedFlag) -> Choice:
    """Return the choice where a command could not be executed for the same reason as before.

    A disk may be mounted some minutes after the machine has started, and what was executed before may be being
    installed again; all else only a person changes.
    """
    tries = job.course.count_same_starts(flag.start_failure) + 1
    if tries < ABSENT_TRIES and job.limits.remedies.allows("restart"):
        if UNMOUNTED in flag.message:
            reason = f"a folder is missing, whose disk may be mounted later: it is tried {ABSENT_TRIES} times"
            return Choice(remedy="restart", reason=reason)
        if job.ledger.furthest_step is not None:
            return Choice(remedy="restart", reason=BEING_INSTALLED)
    return Choice(
        remedy=None,
        reason=f"the command could not be executed {tries} times, for the same reason: correct `command`, `cwd` or "
        f"PATH of the job, or mount what is missing, then `supervisorctl reload` and `supervisorctl start {job.name}`",
    )


def _choose_after_same_start(job: Job, attempt: Attempt, flag: RedFlag, last: Trial, context: RemedyContext) -> Choice:
    """Return the choice after two ends in a row before the first step: an older checkpoint, or nothing.

    A start from the beginning fails by the program, which another try does not change, unless it misses a module that
    it had; where the training made steps before, by a file that it reads without being told, as one that it saved. A
    start from a checkpoint may fail by that one; where an older one fails in the same way, it is what resumes it.
    """
    same = "it failed before its first step in the same way"
    resumed = attempt.resume_from
    if _may_be_installed_again(job, flag):
        return Choice(remedy="restart", reason=BEING_INSTALLED)
    if attempt.loads_itself and attempt.set_aside and last.remedy == "older_generation":
        moved = describe_paths(attempt.set_aside)
        return Choice(remedy=None, reason=f"{same} without {moved}, which was moved aside: {OWN_FILES_AT_FAULT}")
    if ABOUT_NO_CHECKPOINT.match(flag.start_failure or "") or (resumed is None and job.ledger.furthest_step is None):
        tries = job.course.count_same_starts(flag.start_failure) + 1
        times = "twice" if tries <= 2 else f"{tries} times"
        blamed = "the program or its command line is at fault, not the machine"
        return Choice(remedy=None, reason=f"{same} {times}: {blamed}")
    if resumed is None:
        return Choice(remedy=None, reason=f"{same} twice, where it had made steps before: {OWN_FILES_AT_FAULT}")
    if last.remedy != "older_generation" and job.limits.remedies.allows("older_generation"):
        return Choice(remedy="older_generation", reason=f"{same} twice from {resumed.title}")
    blamed = "the resume command is at fault" if context.resume_command else "the way it is resumed is at fault"
    known = ": without it the training made steps" if job.ledger.furthest_step is not None else ""
    reason = f"{same} from every checkpoint tried, last {resumed.title}: {blamed}{known}"
    hint = hint_at_refused_load(flag.start_failure) or hint_at_own_files(context, resumed)
    return Choice(remedy=None, reason=reason if hint is None else f"{reason}; {hint}")


def _may_be_installed_again(job: Job, flag: RedFlag) -> bool:
    """Whether a training that had made steps misses a module: an upgrade of packages removes the old ones first."""
    if job.ledger.furthest_step is None or not ABOUT_MODULE.match(flag.start_failure or ""):
        return False
    return job.course.count_same_starts(flag.start_failure) + 1 < ABSENT_TRIES and job.limits.remedies.allows("restart")


def _shorten_wait(job: Job, flag: RedFlag, not_before: Moment, now: Moment) -> Moment:
    """Return when the next attempt is made: soon after a start that failed in the same way, which comes a few times."""
    if job.course.again_at_start(job.number, flag.start_failure) is None:
        return not_before
    is_absent = _is_not_started(flag) or _may_be_installed_again(job, flag)
    longest_s = ABSENT_WAIT_S if is_absent else SAME_START_WAIT_S
    return min(not_before, now.plus(longest_s), key=lambda at: at.monotonic_s)


def _find_finding(job: Job, attempt: Attempt, flag: RedFlag, step: int | None) -> Finding | None:
    """Return the finding of a triage about this fault, or about an earlier one at the same step."""
    last = job.triage
    if last is not None and last.attempt == attempt.number:
        return last.finding if last.finding is not None and last.finding.verdict != "unknown" else None
    if job.limits.triage_s is None or step is None or looked_for(flag, cause_of(flag)) is None:
        return None
    return find_earlier_finding(last, step, job.limits.remedies.same_place_steps)


def _plan_triage(job: Job, again: de.Retry, flag: RedFlag, cause: str, step: int | None) -> de.StartTriage | None:
    """Postpone the retry `again` until a triage has found the cause; None where none is due, or it was made."""
    what, last = looked_for(flag, cause), job.triage
    if job.limits.triage_s is None or what is None or step is None:
        return None
    if last is not None and last.attempt == again.attempt:
        return None
    return de.StartTriage(
        at=again.at,
        job=job.name,
        attempt=again.attempt,
        reason=flag.message,
        flag=flag,
        cause=cause,
        step=step,
        looked_for=what,
    )


def _find_earliest(job: Job, now: Moment) -> Moment:
    """Return when the next attempt may start at the earliest; the time of a triage is part of the wait."""
    triage_state = job.triage if job.awaits_triage else None
    if triage_state is not None and triage_state.unwanted:
        return now
    since = triage_state.at if triage_state is not None else now
    until = since.plus(job.ledger.backoff_s(job.limits.budget, f"{job.name} {job.number}"))
    return until if until.seconds_since(now) > 0 else now


def _find_fault_step(attempt: Attempt, flag: RedFlag, cause: str) -> int | None:
    """Return the step of the training at which a fault occurred, None where none is known.

    A start without any step counts as the step that it was resumed from: the same start hangs at the same place.
    """
    if flag.since_step is not None:
        return attempt.training_step(flag.since_step)
    if attempt.last_step is None and cause == SLOW_START:
        return attempt.resume_from.step if attempt.resume_from is not None else 0
    return attempt.training_step(attempt.last_step)
