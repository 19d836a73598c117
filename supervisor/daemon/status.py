"""Composes what `status` shows out of the loop's dossiers; pure, called in the deciding thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.control import types
from supervisor.control.shapes import finite, watched_status
from supervisor.control.treatment import in_words
from supervisor.core import progress as pr
from supervisor.core.expectations import checklist
from supervisor.core.flags import Severity
from supervisor.core.history import History
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.judging import judge
from supervisor.core.moments import Moment
from supervisor.core.rules import Rule
from supervisor.core.watched import Watched
from supervisor.daemon.loop import Dossier

PACE_OVER_S = 60.0


def steps_per_s(history: History | None) -> float | None:
    """Return the pace of the last minute's steps, stages other than stepping included; None before two steps."""
    if history is None or len(history.steps) < 2:
        return None
    last = history.steps[-1]
    recent = [one for one in history.steps if last.at.seconds_since(one.at) <= PACE_OVER_S]
    took_s = last.at.seconds_since(recent[0].at)
    return (len(recent) - 1) / took_s if took_s > 0 else None


def steps_total(history: History | None) -> int | None:
    """Return how many steps the whole training has, as far as its plan is known."""
    return None if history is None else pr.steps_total(history)


def job_status(dossier: Dossier, now: Moment) -> types.JobStatus:
    """Return where one job stands."""
    job, history = dossier.job, dossier.history
    attempt, alive = job.attempt, job.phase in ALIVE
    pace = steps_per_s(history) if job.phase is Phase.RUNNING else None
    running = history if job.phase is Phase.RUNNING else None
    progress = pr.Progress() if running is None else pr.progress_of(running, dossier.expected.batches_per_s)
    stage = history.stage if history and alive else None
    return types.JobStatus(
        name=job.name,
        phase=job.phase.value,
        stage=stage.value if stage else None,
        since=job.since.unix_s,
        attempt=job.number,
        pid=attempt.training_pid if attempt and alive else None,
        epoch=attempt.epoch if attempt else None,
        epochs=history.epochs if history else None,
        step=attempt.last_step if attempt else None,
        steps_total=steps_total(history),
        steps_per_s=pace,
        last_step_at=attempt.last_step_at.unix_s if attempt and attempt.last_step_at else None,
        eta=_after(now, progress.left_s),
        eta_early=_after(now, progress.left_early_s),
        eta_late=_after(now, progress.left_late_s),
        epoch_s=progress.epoch_s,
        steps_expected=progress.steps_expected,
        loss=finite(attempt.loss) if attempt else None,
        restarts=job.ledger.total,
        reason=job.reason,
        hooked=history.claimed if history and alive else False,
        unkillable=job.unkillable,
        flags=list(_standing(dossier)) if alive else [],
        shadows=job.shadows_noted,
        watched=list(_watched(dossier)) if alive else [],
        gpus=list(dossier.gpus_used if job.card is None else (job.card,)),
        expectations=[] if running is None else _criteria(dossier, running, progress),
        remedies=in_words(job),
        standby=dossier.standby,
    )


def _after(now: Moment, left_s: float | None) -> float | None:
    return None if left_s is None else now.unix_s + left_s


def _criteria(dossier: Dossier, history: History, progress: pr.Progress) -> list[types.Criterion]:
    found = checklist(dossier.expected, history, progress)
    return [types.Criterion(name=one.name, verdict=one.verdict, text=one.text) for one in found]


def _standing(dossier: Dossier) -> Iterable[str]:
    if dossier.history is not None:
        for flag in judge(dossier.rules, dossier.history):
            if flag.severity is not Severity.INFO:
                yield f"{flag.rule}{' (in shadow)' if flag.shadow else ''}: {flag.message}"


def _watched(dossier: Dossier) -> Iterable[types.WatchedStatus]:
    if dossier.history is None:
        return ()
    found = [watched_status(rule, one) for rule in dossier.rules for one in _watched_by(rule, dossier.history)]
    return sorted(found, key=_nearness, reverse=True)


def _watched_by(rule: Rule, history: History) -> tuple[Watched, ...]:
    watched = rule.watch(history)
    return watched if rule.enabled else (replace(watched[0], not_watched="the rule is switched off"),)


def _nearness(one: types.WatchedStatus) -> tuple[bool, bool, float]:
    """Return what puts the nearest trouble first; good news is no trouble."""
    return one.severity != Severity.INFO.word, one.reached, -1.0 if one.share is None else one.share


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
