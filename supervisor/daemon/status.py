"""Composes what `status` shows out of the loop's job states; pure, called in the deciding thread.

A value that fails to be computed is left out of that job's status only; texts, lists and numbers are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

import msgspec

from supervisor.control import types
from supervisor.control.present import finite, watched_status
from supervisor.control.present_remedies import in_words
from supervisor.core.flags import Severity
from supervisor.core.gauge import Gauge
from supervisor.core.history import History
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.judge import judge
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.reports import progress as pr
from supervisor.core.reports.expectations import checklist
from supervisor.core.rules import Rule
from supervisor.daemon.fence import describe_degraded, describe_error
from supervisor.daemon.job_state import JobState

PACE_OVER_S = 60.0
TEXT_LIMIT = 1000
ITEMS_LIMIT = 200
BOUNDED_BY_TYPE = frozenset((type(None), bool, float))
"""Of most values of a status."""

Bounded = TypeVar("Bounded", bound=msgspec.Struct)


def steps_per_s(history: History | None) -> float | None:
    """Return the pace of the last minute's steps, stages other than stepping included; None before two steps."""
    recent = _recent_steps(history)
    took_s = recent[-1].at.seconds_since(recent[0].at) if recent else 0.0
    return (len(recent) - 1) / took_s if took_s > 0 else None


def samples_per_s(history: History | None) -> float | None:
    """Return the samples a second of the last minute's steps, all ranks together; None where a step reports none."""
    return _drawn_per_s(history, attrgetter("samples"))


def tokens_per_s(history: History | None) -> float | None:
    """Return the tokens a second likewise, padding included; None where the data is not known to be text."""
    return _drawn_per_s(history, attrgetter("tokens"))


def _drawn_per_s(history: History | None, read: Callable[[StepRecord], int | None]) -> float | None:
    """Return what rank 0 drew a second, times the ranks: each draws its own share of an effective batch."""
    recent = _recent_steps(history)
    counts = [read(record) for record in recent[1:]]
    took_s = recent[-1].at.seconds_since(recent[0].at) if recent else 0.0
    known = [count for count in counts if count is not None]
    if history is None or not known or len(known) < len(counts) or took_s <= 0:
        return None
    return sum(known) / took_s * max(1, len(history.reports.rank_pids))


def _recent_steps(history: History | None) -> Sequence[StepRecord]:
    """Return the steps of the last minute before the newest; none where there are fewer than two."""
    if history is None or len(history.steps) < 2:
        return ()
    last = history.steps[-1].at
    return [record for record in history.steps if last.seconds_since(record.at) <= PACE_OVER_S]


def steps_total(history: History | None) -> int | None:
    """Return how many steps the complete training has, as far as its plan is known."""
    return None if history is None else pr.steps_total(history)


def job_status(job_state: JobState, now: Moment, *, watched: bool = True) -> types.JobStatus:
    """Return the status of one job, `watched` with the gauges of its rules; where that fails, what the job holds."""
    try:
        return bounded(_job_status(job_state, now, watched=watched))
    except Exception as error:
        job = job_state.job
        barely = types.JobStatus(
            name=job.name,
            phase=job.phase.value,
            since=job.since.unix_s,
            attempt=job.number,
            reason=job.reason or job.rebuilt,
            degraded=[*map(describe_degraded, job_state.degraded.values()), f"status: {describe_error(error)}"],
        )
        return bounded(barely)


def bounded(value: Bounded) -> Bounded:
    """Return an answer with every text and list cut to its limit and numbers beyond 64 bits unknown."""
    changed: dict[str, object] = {}
    for name, given in zip(value.__struct_fields__, msgspec.structs.astuple(value), strict=True):
        kept = given if type(given) in BOUNDED_BY_TYPE else _bound_value(given)
        if kept is not given:  # a list always: the answer is written by another thread than changes it
            changed[name] = kept
    return msgspec.structs.replace(value, **changed) if changed else value


def _bound_value(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= TEXT_LIMIT else value[: TEXT_LIMIT - 1] + "\u2026"
    if isinstance(value, list | tuple):
        return [_bound_value(each) for each in value[:ITEMS_LIMIT]]
    if isinstance(value, msgspec.Struct):
        return bounded(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value


def _explain(job_state: JobState) -> str | None:
    """Return why a job is in its phase, and why its next attempt is not launched yet where its disk is the reason."""
    job, held = job_state.job, job_state.held
    if held is None or job.phase not in (Phase.PENDING, Phase.BACKOFF):
        return job.reason or job.rebuilt
    return "; ".join(filter(None, (job.reason or job.rebuilt, f"not launched: {held}")))


def _job_status(job_state: JobState, now: Moment, *, watched: bool) -> types.JobStatus:
    job, history = job_state.job, job_state.history
    attempt, alive = job.attempt, job.phase in ALIVE
    pace = steps_per_s(history) if job.phase is Phase.RUNNING else None
    running = history if job.phase is Phase.RUNNING else None
    progress = pr.Progress() if running is None else pr.progress_of(running, job_state.expected.batches_per_s)
    stage = history.training_stage if history and alive else None
    return types.JobStatus(
        name=job.name,
        phase=job.phase.value,
        stage=stage.value if stage else None,
        since=job.since.unix_s,
        attempt=job.number,
        pid=attempt.training_pid if attempt and alive else None,
        epoch=progress.epoch if attempt and attempt.epoch is None else attempt.epoch if attempt else None,
        epochs=history.plan.epochs if history else None,
        step=attempt.training_step(attempt.last_step) if attempt else None,
        attempt_steps=attempt.steps_made if attempt else None,
        steps_total=steps_total(history),
        steps_per_s=pace,
        samples_per_s=samples_per_s(running),
        tokens_per_s=tokens_per_s(running),
        last_step_at=attempt.last_step_at.unix_s if attempt and attempt.last_step_at else None,
        eta=_time_after(now, progress.left_s),
        eta_early=_time_after(now, progress.left_early_s),
        eta_late=_time_after(now, progress.left_late_s),
        epoch_s=progress.epoch_s,
        steps_expected=progress.steps_expected,
        loss=finite(attempt.loss) if attempt else None,
        restarts=job.ledger.total,
        reason=_explain(job_state),
        hooked=history.claimed if history and alive else False,
        unkillable=job.unkillable,
        flags=list(_list_flags(job_state)) if alive else [],
        shadows=job.shadows_noted,
        watched=list(_list_gauges(job_state)) if alive and watched else [],
        gpus=list(job_state.gpus_used if job.gpu is None else (job.gpu,)),
        expectations=[] if running is None else _list_criteria(job_state, running, progress),
        remedies=in_words(job),
        standby=job_state.standby,
        degraded=[describe_degraded(supervision_changed) for supervision_changed in job_state.degraded.values()],
    )


def _time_after(now: Moment, left_s: float | None) -> float | None:
    return None if left_s is None else now.unix_s + left_s


def _list_criteria(job_state: JobState, history: History, progress: pr.Progress) -> list[types.Criterion]:
    found = checklist(job_state.expected, history, progress)
    return [types.Criterion(name=criterion.name, verdict=criterion.verdict, text=criterion.text) for criterion in found]


def _list_flags(job_state: JobState) -> Iterable[str]:
    if job_state.history is not None:
        for flag in judge(_rules_in_force(job_state), job_state.history):
            if flag.severity is not Severity.INFO:
                yield f"{flag.rule}{' (in shadow)' if flag.shadow else ''}: {flag.message}"


def _list_gauges(job_state: JobState) -> Iterable[types.WatchedStatus]:
    if job_state.history is None:
        return ()
    measured = ((rule, gauge) for rule in job_state.rules for gauge in _measure_gauges(rule, job_state.history))
    found = [watched_status(rule, gauge) for rule, gauge in measured]
    return sorted(found, key=_nearness_key, reverse=True)


def _measure_gauges(rule: Rule, history: History) -> tuple[Gauge, ...]:
    try:
        gauges = rule.measure(history)
    except Exception as error:
        return (Gauge(what=rule.name, not_watched=f"it failed: {describe_error(error)}"),)
    return gauges if rule.enabled else (replace(gauges[0], not_watched="the rule is switched off"),)


def _rules_in_force(job_state: JobState) -> Iterable[Rule]:
    """Return the rules that did not fail in this attempt."""
    return (rule for rule in job_state.rules if rule.name not in job_state.switched_off)


def _nearness_key(gauge: types.WatchedStatus) -> tuple[bool, bool, float]:
    """Return the sort key that puts the value nearest to its limit first; INFO comes last."""
    return gauge.severity != Severity.INFO.label, gauge.reached, -1.0 if gauge.share is None else gauge.share


def line(jobs: Iterable[Job], problem: str | None) -> str:
    """Return one line for `systemctl status`: `yolo running (epoch 4, step 5120, loss 1.42); mi50 backoff: ...`."""
    parts = [_job_line(job) for job in jobs] or ["no jobs configured"]
    return "; ".join([*parts, *([f"problem: {problem}"] if problem else [])])[:400]


def _job_line(job: Job) -> str:
    attempt = job.attempt
    if job.phase is Phase.RUNNING and attempt is not None and attempt.last_step is not None:
        epoch = "" if attempt.epoch is None else f"epoch {attempt.epoch + 1}, "
        loss = finite(attempt.loss)
        shown = "" if loss is None else f", loss {loss:.4g}"
        return f"{job.name} running ({epoch}step {attempt.last_step}{shown})"
    return f"{job.name} {job.phase.value}" + (f": {job.reason}" if job.reason else "")
