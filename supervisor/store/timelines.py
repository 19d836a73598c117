"""Reads a job's attempts from the record, in the form that its timeline is computed from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from supervisor.core.flags import RedFlag
from supervisor.core.incident import Incident
from supervisor.core.reports.outages import AttemptLife, Outage, Unwatched, find_unwatched
from supervisor.core.reports.strides import Strides
from supervisor.core.reports.timeline import Life
from supervisor.store.archive import Archive
from supervisor.store.records import AttemptRecord, DecisionRecord

ALL = 1_000_000
"""No limit: more rows than any job has."""
ENDINGS = frozenset({"finish", "retry", "give_up"})
FROM_THE_BEGINNING = frozenset({"checkpoint_ignored", "resumed_later"})
"""Outcomes of the incident before an attempt that made its first steps again, in spite of a checkpoint."""


class _Entered(msgspec.Struct, frozen=True):
    stage: str


class _AgentReport(msgspec.Struct, frozen=True):
    agent_event: str
    facts: dict[str, object] = msgspec.field(default_factory=dict)


class _Away(msgspec.Struct, frozen=True):
    away_s: float = 0.0


class _Ending(msgspec.Struct, frozen=True):
    counts: bool = True


class _Launch(msgspec.Struct, frozen=True):
    loads_itself: bool = False


def read_lives(archive: Archive, job: str) -> tuple[Life, ...]:
    """Return a job's attempts, the oldest first; one whose launch time was not recorded is left out.

    Raises ArchiveError.
    """
    attempts = sorted(archive.attempts(job, ALL), key=lambda attempt: attempt.number)
    decisions = archive.decisions(job, ALL)
    endings, loading_themselves = _read_endings(decisions), _list_loading_themselves(decisions)
    incidents = {incident.attempt: incident for incident in archive.incidents(job, ALL)}
    own = _counting_themselves(archive, job)
    saves = archive.resumed_saves(job)
    strides = archive.strides(job)
    entered = _read_stages(archive, job)
    triages = _read_triages(archive, job)
    found = []
    for before, attempt in zip((None, *attempts), attempts, strict=False):  # the last has no successor
        if attempt.launched_unix_s is None:
            continue
        incident = None if before is None else incidents.get(before.number)
        checkpoint_ignored = incident is not None and incident.outcome in FROM_THE_BEGINNING
        loads_itself = attempt.number in loading_themselves
        without_before = before is None or endings.get(before.number, False)
        own_incident = incidents.get(attempt.number)
        found.append(
            Life(
                number=attempt.number,
                launched_unix_s=attempt.launched_unix_s,
                ended_unix_s=attempt.ended_unix_s,
                resume_step=_find_resume_step(attempt, incident, loads_itself=loads_itself),
                resume_saved_unix_s=None if checkpoint_ignored else _find_save_time(saves, attempt),
                from_beginning=attempt.resume_from is None and not loads_itself and without_before,
                entered=entered.get(attempt.number, ()),
                strides=strides.get(attempt.number, Strides()),
                counts_itself=attempt.number in own,
                cause=None if own_incident is None else _describe_cause(own_incident.flag),
                wanted=endings.get(attempt.number, False),
                triage=triages.get(attempt.number),
            )
        )
    return tuple(found)


def _find_resume_step(attempt: AttemptRecord, incident: Incident | None, *, loads_itself: bool) -> int | None:
    """Return the step that an attempt went on from, 0 for the beginning; None where that is not known.

    `incident` is that of the attempt before it. What finds its own file shows by its first step where it went on from.
    """
    if incident is not None and incident.outcome in FROM_THE_BEGINNING:
        return 0
    if attempt.resume_from is not None:
        return attempt.resume_step
    went_on_step = None if incident is None else incident.went_on_step
    return went_on_step if went_on_step is not None or loads_itself else 0


def read_unwatched(archive: Archive, job: str) -> tuple[Unwatched, ...]:
    """Return the outages of the daemon in which an attempt of a job lived, the newest first. Raises ArchiveError."""
    outages = []
    for event_record in archive.events(kind="daemon_away", limit=ALL):
        away_s = msgspec.json.decode(event_record.body, type=_Away).away_s
        outages.append(Outage(began_unix_s=event_record.at_unix_s - away_s, ended_unix_s=event_record.at_unix_s))
    return find_unwatched(outages, _read_attempt_lives(archive, job)) if outages else ()


def _read_attempt_lives(archive: Archive, job: str) -> list[AttemptLife]:
    """Return when each attempt lived; one whose end is not recorded was over when the next began."""
    found: list[AttemptLife] = []
    next_launched: float | None = None
    for attempt in archive.attempts(job, ALL):  # the newest first
        if attempt.launched_unix_s is not None:
            ended = next_launched if attempt.ended_unix_s is None else attempt.ended_unix_s
            found.append(
                AttemptLife(job=job, number=attempt.number, launched_unix_s=attempt.launched_unix_s, ended_unix_s=ended)
            )
            next_launched = attempt.launched_unix_s
    return found


def _describe_cause(flag: RedFlag) -> str:
    return f"{flag.rule} ({flag.fault})" if flag.fault else flag.rule


def _counting_themselves(archive: Archive, job: str) -> set[int]:
    """Return the attempts whose steps are their own count, by the agent's newest report."""
    scales: dict[int, str] = {}
    for event_record in archive.events(job, kind="agent_reported", limit=ALL):
        if event_record.attempt is None or event_record.job != job:
            continue
        report = msgspec.json.decode(event_record.body, type=_AgentReport)
        if report.agent_event == "counting" and isinstance(scale := report.facts.get("scale"), str):
            scales[event_record.attempt] = scale
    return {attempt for attempt, scale in scales.items() if scale == "attempt"}


def _read_triages(archive: Archive, job: str) -> dict[int, tuple[float, float]]:
    """Return when each attempt was under triage; a triage without a recorded end has no bound."""
    began = {
        decision.attempt: decision.at_unix_s for decision in archive.decisions(job, ALL) if decision.kind == "triage"
    }
    ended = {
        event_record.attempt: event_record.at_unix_s
        for event_record in archive.events(job, kind="triage_ended", limit=ALL)
    }
    return {attempt: (at, ended.get(attempt, math.inf)) for attempt, at in began.items()}


def _read_endings(decisions: Iterable[DecisionRecord]) -> dict[int, bool]:
    """Return, for each settled attempt, whether its end was wanted, by the last decision about it."""
    wanted: dict[int, bool] = {}
    for decision in decisions:
        if decision.kind in ENDINGS and decision.attempt not in wanted:
            free = decision.kind == "retry" and not msgspec.json.decode(decision.body, type=_Ending).counts
            wanted[decision.attempt] = free or decision.kind == "finish"
    return wanted


def _list_loading_themselves(decisions: Iterable[DecisionRecord]) -> frozenset[int]:
    """Return the attempts that were given no checkpoint and had to find by themselves what they go on from."""
    launches = (decision for decision in decisions if decision.kind == "launch")
    return frozenset(item.attempt for item in launches if msgspec.json.decode(item.body, type=_Launch).loads_itself)


def _read_stages(archive: Archive, job: str) -> dict[int, tuple[tuple[float, str], ...]]:
    """Return the stages of each attempt; the present one may be recorded twice, without effect."""
    by_attempt: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for event_record in archive.events(job, kind="stage_entered", limit=ALL):
        if event_record.attempt is not None and event_record.job == job:
            stage = msgspec.json.decode(event_record.body, type=_Entered).stage
            by_attempt[event_record.attempt].append((event_record.at_unix_s, stage))
    return {attempt: tuple(sorted(found)) for attempt, found in by_attempt.items()}


def _find_save_time(saves: Iterable[tuple[str, int | None, float]], attempt: AttemptRecord) -> float | None:
    """Return when the checkpoint of an attempt was saved: the last time before its launch."""
    launched = attempt.launched_unix_s or 0.0
    known = (
        at for path, step, at in saves if (path, step) == (attempt.resume_from, attempt.resume_step) and at <= launched
    )
    return max(known, default=None)
