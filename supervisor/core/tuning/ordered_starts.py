"""The starts that a tune orders, from the order to the attempt: what is lent ends with its attempt, whatever happens.

An order belongs to the stop that the tune itself brought about, to the retry of that stop and to the attempt of that
retry. A fault in between makes another retry, which has none. What was lent is given up without a charge where its
attempt fails: a crash, a hang or a loss that is no number may be its work, and what is the training's own comes again
as the next attempt, as configured, makes the same steps. A fault of the machine is one whatever was lent. Nothing that
its attempt saved is resumed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag
from supervisor.core.job import ALIVE, Attempt, DesiredState, Job, Phase, RetryPlan
from supervisor.core.judge import merge_critical
from supervisor.core.moments import Moment
from supervisor.core.remedies.causes import FRAGMENTATION, GPU_LOST, NON_FINITE, OOM_GPU, OOM_HOST
from supervisor.core.rules import cause_of
from supervisor.core.rules.crash_diagnosis import HOST_LOST
from supervisor.core.tuning.start_order import StartOrder, TunedStart


def fold_start_asked(job: Job, event: ev.StartAsked) -> Job:
    """Return the job after a tune asked something of its starts."""
    match event.ask:
        case ev.StartAsk.FORGET:
            return replace(job, tuned=None)
        case ev.StartAsk.TRY:
            attempt = job.attempt
            if attempt is None or attempt.number != event.attempt or job.desired_state is not DesiredState.RUN:
                return job
            hangs = job.phase is Phase.STARTING and attempt.is_lent
            ready = job.phase is Phase.RUNNING or hangs
            return replace(job, asked_start=event.order, start_refused=None) if ready else job
        case ev.StartAsk.KEEP:
            return replace(job, tuned=None if event.order is None else event.order.start)
        case ev.StartAsk.END:
            return _end_orders(job)


def _end_orders(job: Job) -> Job:
    """Return the job with no start on trial: an attempt with other than what was proven is to be restarted."""
    job, attempt = without_orders(job), job.attempt
    if attempt is None or attempt.order is None or job.phase not in ALIVE:
        return job
    if attempt.start == job.tuned:
        return replace(job, attempt=replace(attempt, order=None))
    since = attempt.order.since_unix_s if attempt.is_lent else None
    order = StartOrder(start=job.tuned, measures=False, saves=not attempt.is_lent, since_unix_s=since)
    return replace(job, asked_start=order)


def without_orders(job: Job) -> Job:
    """Return the job without the start that a tune ordered next."""
    plan, stop = job.retry, job.stop
    if plan is not None and plan.order is not None:
        plan = replace(plan, order=None, resume_point=None)  # it may have been looked for in its environment
    return replace(
        job,
        asked_start=None,
        retry=plan,
        stop=None if stop is None else replace(stop, order=None),
    )


def end_for_order(job: Job, attempt: Attempt, now: Moment) -> de.Stop | None:
    """Return the decision to end an attempt for the start that a tune asked for."""
    order = job.asked_start
    if order is None:
        return None
    reason = f"restarted {order.words}"
    return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=reason, save=order.saves, order=order)


OF_MACHINE = frozenset({"disk_low", "ecc", "gpu_lost", "stopped_process", "storage_wait", "thermal"})
"""Rules on what no setting of a start brings about."""
FAULTS_OF_MACHINE = frozenset({HOST_LOST, FaultClass.DISK_FULL.value})


def end_failed_start(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment) -> de.Stop | None:
    """Return the decision to end an attempt that fails with what is on trial."""
    flag = merge_critical(flags)
    if flag is None or attempt.start is None or not _may_be_of_trial(attempt, flag):
        return None
    reason = f"{attempt.start.words}: {flag.message}"
    return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=reason, save=False, refused_start=reason)


def _may_be_of_trial(attempt: Attempt, flag: RedFlag) -> bool:
    """Whether what is on trial may be the reason of a flag; before the first step it is taken for that."""
    if not attempt.is_lent or attempt.last_step is None:
        return attempt.is_lent
    return not is_of_machine(flag)


def is_of_machine(flag: RedFlag) -> bool:
    """Whether a flag is of the machine, or of whoever stopped a process: no setting brings that about."""
    of_machine = flag.rule in OF_MACHINE or flag.fault in FAULTS_OF_MACHINE or cause_of(flag) == GPU_LOST
    return of_machine or bool(flag.stopped_pids)


def settle_start(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment) -> de.Retry | None:
    """Return the retry without what a tune had an attempt started with, where that attempt is nothing to go by.

    It ended by itself before its first step, or with what is on trial, of a fault or to its end: nothing of it is kept.
    """
    start, flag = attempt.start, merge_critical(flags)
    if start is None or job.stop is not None:
        return None
    clean = attempt.exit is not None and attempt.exit.clean
    failed = attempt.last_step is None and not clean
    died = flag is not None and _may_be_of_trial(attempt, flag)
    if attempt.is_lent:
        is_over = failed or clean or attempt.train_ended or died
    else:
        is_over = failed and attempt.host_lost is None and attempt.launch_shortage is None
    if not is_over:
        return None
    began = attempt.launch_error is None and (attempt.exit is None or attempt.exit.error is None)
    when = "before its first step " if failed and began else ""
    why = flag.message if flag is not None and died and not failed else f"{when}its process {attempt.ending}"
    return _retry_without(job, start, why, now, not_before=now)


def refuse_environment(job: Job, plan: RetryPlan, problem: str, now: Moment) -> de.Retry | None:
    """Return the retry without what a tune has the next attempt started with, where its environment loads nothing."""
    start = job.next_start
    if job.remedy_environment is not None or start is None:
        return None
    return _retry_without(job, start, problem, now, not_before=plan.not_before)


def _retry_without(job: Job, start: TunedStart, why: str, now: Moment, not_before: Moment) -> de.Retry:
    return de.Retry(
        at=now,
        job=job.name,
        attempt=job.number,
        reason=f"started without {start.words}: {why}",
        not_before=not_before,
        counts=False,
        refused_start=why,
    )


def find_order(job: Job, decision: de.Retry) -> StartOrder | None:
    """Return the order that a retry carries out: that of the stop before it, if nothing else came in between."""
    if job.stop is None or decision.flag is not None or decision.refused_start is not None:
        return None
    return job.stop.order


def get_unused_since(job: Job) -> float | None:
    """Return from when on what was saved is not resumed from, because it was saved while a start was on trial."""
    attempt, order = job.attempt, job.stop.order if job.stop is not None else None
    if attempt is not None and attempt.is_lent and attempt.order is not None:
        return attempt.order.since_unix_s
    return None if order is None else order.since_unix_s


def why_start_failed(job: Job, decision: de.Retry | de.GiveUp) -> tuple[TunedStart, str] | None:
    """Return what a tune had an attempt started with that failed with it, or would have, and why; None otherwise."""
    attempt = job.attempt
    if isinstance(decision, de.Retry) and decision.refused_start is not None:
        start = job.next_start if job.phase is Phase.BACKOFF else attempt.start if attempt is not None else None
        return None if start is None else (start, decision.refused_start)
    if attempt is None or attempt.start is None:
        return None
    is_first = attempt.last_step is not None and (attempt.is_lent or job.ledger.in_a_row == 0)
    if is_first and not _may_be_of_batch(attempt.start, decision):
        return None  # one fault is the training's own; of a second without progress what was tuned may be the reason
    if decision.flag is None or attempt.host_lost is not None or attempt.launch_shortage is not None:
        return None
    return (attempt.start, decision.flag.message)


OF_BATCH = frozenset({FRAGMENTATION, NON_FINITE, OOM_GPU, OOM_HOST})
"""Causes of which a larger batch, or the learning rate set with it, may be the reason at the first fault."""


def _may_be_of_batch(start: TunedStart, decision: de.Retry | de.GiveUp) -> bool:
    return bool(start.factors) and decision.flag is not None and cause_of(decision.flag) in OF_BATCH


def forget_refused(job: Job, failed: tuple[TunedStart, str] | None) -> Job:
    """Return the job without what failed at its start, if that is used at each, and with the reason."""
    if failed is None:
        return job
    start, why = failed
    return replace(job, start_refused=why, tuned=None if job.tuned == start else job.tuned)
