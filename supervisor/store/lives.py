"""A job's attempts as its account needs them, read out of the record; it reckons nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from supervisor.core.timeline import Life, Stride
from supervisor.store.archive import Archive
from supervisor.store.records import AttemptRecord, DecisionRecord, StepBucket

ALL = 1_000_000
"""More than any job has of anything that is read here."""
ENDINGS = frozenset({"finish", "retry", "give_up"})


class _Entered(msgspec.Struct, frozen=True):
    stage: str


class _Ending(msgspec.Struct, frozen=True):
    counts: bool = True


def lives(archive: Archive, job: str) -> tuple[Life, ...]:
    """Return a job's attempts, the oldest first; one whose launch time was never kept is left out.

    Raises ArchiveError.
    """
    attempts = sorted(archive.attempts(job, ALL), key=lambda one: one.number)
    endings = _endings(archive.decisions(job, ALL))
    causes = {
        one.attempt: f"{one.flag.rule} ({one.flag.fault})" if one.flag.fault else one.flag.rule
        for one in archive.incidents(job, ALL)
    }
    saves = archive.resumed_saves(job)
    strides = _strides(archive.step_metrics(job))
    entered = _entered(archive, job)
    triages = _triages(archive, job)
    found = []
    for before, one in zip((None, *attempts[:-1]), attempts, strict=True):
        if one.launched_unix_s is None:
            continue
        found.append(
            Life(
                number=one.number,
                launched_unix_s=one.launched_unix_s,
                ended_unix_s=one.ended_unix_s,
                resume_step=0 if one.resume_from is None else one.resume_step,
                resume_saved_unix_s=_saved(saves, one),
                anew=one.resume_from is None and (before is None or endings.get(before.number, False)),
                entered=entered.get(one.number, ()),
                strides=strides.get(one.number, ()),
                cause=causes.get(one.number),
                wished=endings.get(one.number, False),
                triage=triages.get(one.number),
            )
        )
    return tuple(found)


def _triages(archive: Archive, job: str) -> dict[int, tuple[float, float]]:
    """Return when each attempt was under triage; one of which no end is recorded lasts as long as it may."""
    began = {one.attempt: one.at_unix_s for one in archive.decisions(job, ALL) if one.kind == "triage"}
    ended = {one.attempt: one.at_unix_s for one in archive.events(job, kind="triage_ended", limit=ALL)}
    return {attempt: (at, ended.get(attempt, math.inf)) for attempt, at in began.items()}


def _endings(decisions: Iterable[DecisionRecord]) -> dict[int, bool]:
    """Return of each attempt that was settled whether its end was wanted, by the last decision about it."""
    wanted: dict[int, bool] = {}
    for one in decisions:
        if one.kind in ENDINGS and one.attempt not in wanted:
            free = one.kind == "retry" and not msgspec.json.decode(one.body, type=_Ending).counts
            wanted[one.attempt] = free or one.kind == "finish"
    return wanted


def _strides(buckets: Iterable[StepBucket]) -> dict[int, tuple[Stride, ...]]:
    by_attempt: dict[int, list[Stride]] = defaultdict(list)
    for one in buckets:
        by_attempt[one.attempt].append(
            Stride(
                first_unix_s=one.first_unix_s,
                last_unix_s=one.last_unix_s,
                step_first=one.step_first,
                step_last=one.step_last,
                data_wait_s=(one.data_wait_mean_s or 0.0) * one.steps,
            )
        )
    return {attempt: tuple(found) for attempt, found in by_attempt.items()}


def _entered(archive: Archive, job: str) -> dict[int, tuple[tuple[float, str], ...]]:
    """Return the stages of each attempt; a new daemon hears of the present one again, which changes nothing."""
    by_attempt: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for one in archive.events(job, kind="stage_entered", limit=ALL):
        if one.attempt is not None and one.job == job:
            stage = msgspec.json.decode(one.body, type=_Entered).stage
            by_attempt[one.attempt].append((one.at_unix_s, stage))
    return {attempt: tuple(sorted(found)) for attempt, found in by_attempt.items()}


def _saved(saves: Iterable[tuple[str, int | None, float]], one: AttemptRecord) -> float | None:
    """Return when what an attempt was resumed from was saved: the last time before its launch."""
    launched = one.launched_unix_s or 0.0
    known = (at for path, step, at in saves if (path, step) == (one.resume_from, one.resume_step) and at <= launched)
    return max(known, default=None)
