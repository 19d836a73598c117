"""What can be asked of the record, answered in the bodies of the API: by the daemon or, while it is away, the CLI.

`READS` names every such question by its route. The server answers these routes, and `supervisorctl` the same ones from
the same functions where no daemon runs. An answer that is put together here has its body here; entries that are made of
facts of `core` are in `record_types`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import unquote

from msgspec import Struct, field

from supervisor.control import record_types, types
from supervisor.control.alerts import ReceiverState, alerts_report
from supervisor.control.checkpoint_list import listed
from supervisor.control.disk_use import disk_use
from supervisor.control.evidence import FILE_LIMIT_BYTES, evidence_files, evidence_part
from supervisor.control.present import incident_entry, job_account, outage_entry, shadow_entry, story_lines
from supervisor.control.present_remedies import remedy_report
from supervisor.control.refusals import BadRequest, NoSuchEvidence, NoSuchIncident, NoSuchJob, Unreadable
from supervisor.control.tail import tail
from supervisor.core import attempt_files as names
from supervisor.core.job import Job
from supervisor.store.archive import Archive
from supervisor.store.timelines import read_lives, read_unwatched

INCIDENTS_AT_ONCE = 1000
CHECKPOINTS_AT_ONCE = 1000
LINES_AT_ONCE = 10_000
CLEARED = "evidence is removed after retention.incidents_days"

FOLDER = re.compile(r"(?:[a-z]+-)?([0-9]+)(?:-.*)?")
"""The name of an attempt's folder, or of what `current` points to between two: a replay, a proof of an environment."""

T = TypeVar("T")


class Shadows(Struct, frozen=True, kw_only=True):
    """Flags of rules in shadow, newest first."""

    schema: int = types.SCHEMA
    flags: list[record_types.ShadowEntry] = field(default_factory=list)


class History(Struct, frozen=True, kw_only=True):
    """Incidents and outages of the daemon, each newest first."""

    schema: int = types.SCHEMA
    incidents: list[record_types.IncidentEntry] = field(default_factory=list)
    outages: list[record_types.OutageEntry] = field(default_factory=list)


class IncidentDetail(Struct, frozen=True, kw_only=True):
    """One incident with what led to it and what came of it, oldest first."""

    schema: int = types.SCHEMA
    incident: record_types.IncidentEntry
    story: list[record_types.StoryLine] = field(default_factory=list)


class Checkpoints(Struct, frozen=True, kw_only=True):
    """The checkpoints of a job, the one with the most training first."""

    schema: int = types.SCHEMA
    job: str
    checkpoints: list[record_types.CheckpointEntry] = field(default_factory=list)


class Facts(Protocol):
    """What the record does not hold: the daemon has it in memory, the command line reads the configuration."""

    @property
    def unreadable_hint(self) -> str:
        """What to do about a file that may not be read."""
        ...

    def now_unix_s(self) -> float:
        """Return the time, in Unix seconds."""
        ...

    def job_names(self) -> Collection[str]:
        """Return the names of the configured jobs."""
        ...

    def jobs(self) -> Sequence[Job]:
        """Return the configured jobs with their newest known state."""
        ...

    def receivers(self) -> Mapping[str, ReceiverState]:
        """Return the configured receivers of alerts by name."""
        ...


class RecordView:
    """The record of one state directory. Methods raise ArchiveError, and a Refusal for what is not there."""

    def __init__(self, archive: Archive, state: Path, facts: Facts) -> None:
        self._archive = archive
        self._jobs = state / "jobs"
        self._facts = facts

    def incidents(self, job: str | None, limit: int) -> Sequence[record_types.IncidentEntry]:
        """Return incidents of one job, or of all, newest first."""
        found = self._archive.incidents(job, limit)
        if not found:
            self._check_known(job)
        return [incident_entry(incident) for incident in found]

    def outages(self, job: str | None, limit: int) -> Sequence[record_types.OutageEntry]:
        """Return when the daemon did not run while one job, or any, had a living attempt, newest first."""
        names = [recorded.name for recorded in self._archive.jobs()] if job is None else [job]
        found = [outage_entry(unwatched) for name in names for unwatched in read_unwatched(self._archive, name)]
        return sorted(found, key=lambda outage: outage.at, reverse=True)[:limit]

    def shadows(self, job: str | None, limit: int) -> Sequence[record_types.ShadowEntry]:
        """Return what rules in shadow would have acted on, of one job or of all, newest first."""
        found = self._archive.notes(job, limit)
        if not found:
            self._check_known(job)
        return [shadow_entry(note) for note in found]

    def incident(self, incident_id: str) -> IncidentDetail:
        """Return one incident with its flags and decisions; raise NoSuchIncident."""
        story = self._archive.incident(incident_id)
        if story is None:
            raise NoSuchIncident(f"no incident {incident_id!r} is recorded", "supervisorctl history lists them")
        return IncidentDetail(incident=incident_entry(story.incident), story=story_lines(story))

    def evidence(self, incident_id: str) -> record_types.EvidenceFiles:
        """Return the files of an incident's evidence; raise NoSuchIncident, NoSuchEvidence or Unreadable."""
        folder = self._evidence_folder(incident_id)
        try:
            return evidence_files(folder)
        except OSError as error:
            raise self._explain_unreadable(folder, error) from error

    def evidence_part(self, incident_id: str, name: str, limit_bytes: int) -> record_types.EvidencePart:
        """Return the end of one file of the evidence; raise as `evidence` does."""
        folder = self._evidence_folder(incident_id)
        try:
            return evidence_part(folder, name, limit_bytes)
        except OSError as error:
            raise self._explain_unreadable(f"{folder}/{name}", error) from error

    def checkpoints(self, job: str) -> Sequence[record_types.CheckpointEntry]:
        """Return the checkpoints of a job, the one with the most training first."""
        found = self._archive.checkpoints(job)
        if not found:
            self._check_known(job)
        return listed(known_checkpoint.checkpoint for known_checkpoint in found)

    def account(self, job: str) -> record_types.JobAccount:
        """Return how the time of a job was spent."""
        found = read_lives(self._archive, job)
        if not found:
            self._check_known(job)
        return job_account(job, found, read_unwatched(self._archive, job), self._facts.now_unix_s())

    def remedies(self, job: str | None, limit: int) -> record_types.RemedyReport:
        """Return the remedies in force and at most `limit` of those tried, of one job or of all."""
        jobs = [known for known in self._facts.jobs() if job in (None, known.name)]
        if not jobs:
            self._check_known(job)
        return remedy_report(jobs, self._archive.remedies(job, limit), self._archive.experience())

    def alerts(self, limit: int) -> types.AlertsReport:
        """Return the receivers of alerts and at most `limit` of the newest alerts."""
        return alerts_report(self._archive, self._facts.receivers(), limit)

    def output(self, job: str, after: int | None, attempt: int | None, lines: int) -> types.Output:
        """Return folded output after offset `after` of `attempt`.

        With `after` None, or where a newer attempt has begun, its last `lines` lines (`tail.py` does both).
        """
        self._check_known(job)
        number = self._newest_attempt(job)
        folder = self._jobs / job / str(number)
        try:
            part = tail(folder, names.FOLDED, after if attempt == number else None, lines)
        except OSError as error:
            raise Unreadable(f"{folder / names.FOLDED}: {error.strerror}", self._facts.unreadable_hint) from error
        return types.Output(job=job, attempt=number, text=part.text, next_offset=part.next_offset)

    def disk_use(self) -> record_types.DiskUse:
        """Return what the state directory takes on the disk; raise Unreadable."""
        try:
            return disk_use(self._jobs.parent, self._archive.path, self._facts.job_names())
        except OSError as error:
            raise Unreadable(
                f"{error.filename or self._jobs}: {error.strerror}", self._facts.unreadable_hint
            ) from error

    def _newest_attempt(self, job: str) -> int:
        """Return the number of the newest attempt that has a folder, 0 where there is none."""
        try:
            target = os.readlink(self._jobs / job / names.CURRENT)  # noqa: PTH115 - a str is checked, not a path followed
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise Unreadable(f"{self._jobs / job}: {error.strerror}", self._facts.unreadable_hint) from error
        found = FOLDER.fullmatch(target)
        return int(found[1]) if found else 0

    def _check_known(self, job: str | None) -> None:
        """Raise NoSuchJob for a job that is neither configured nor recorded."""
        if job is None or job in (configured := self._facts.job_names()):
            return
        recorded = [recorded.name for recorded in self._archive.jobs()]
        if job not in recorded:
            raise NoSuchJob(job, sorted({*recorded, *configured}), or_recorded=True)

    def _evidence_folder(self, incident_id: str) -> str:
        folder = self.incident(incident_id).incident.evidence
        if folder is None:
            raise NoSuchEvidence(f"no evidence was collected for {incident_id}", "see supervisorctl show")
        return folder

    def _explain_unreadable(self, path: str, error: OSError) -> NoSuchEvidence | Unreadable:
        if isinstance(error, FileNotFoundError):
            return NoSuchEvidence(f"{path}: {error.strerror}", CLEARED)
        return Unreadable(f"{path}: {error.strerror}", self._facts.unreadable_hint)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one question: those in its path, and those of its query, as text."""

    path: Mapping[str, str]
    query: Mapping[str, str]

    def integer(self, name: str, default: T, largest: int) -> int | T:
        """Return an integer of the query, or `default` where it is not given; raise BadRequest."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= largest):
            raise BadRequest(f"{name} must be an integer from 0 to {largest}")
        return int(text)


@dataclass(frozen=True, slots=True)
class Read:
    """One question of the record."""

    route: str
    answer: Callable[[RecordView, Parameters], Struct]
    looks_at_files: bool = False
    """Whether it looks at files of a training, which may lie on a file system that does not answer."""


def _list_incidents(record: RecordView, given: Parameters) -> History:
    limit = given.integer("limit", 50, INCIDENTS_AT_ONCE)
    job = given.query.get("job")
    return History(incidents=list(record.incidents(job, limit)), outages=list(record.outages(job, limit)))


def _list_shadows(record: RecordView, given: Parameters) -> Shadows:
    limit = given.integer("limit", 50, INCIDENTS_AT_ONCE)
    return Shadows(flags=list(record.shadows(given.query.get("job"), limit)))


def _read_incident(record: RecordView, given: Parameters) -> IncidentDetail:
    return record.incident(given.path["id"])


def _list_evidence(record: RecordView, given: Parameters) -> record_types.EvidenceFiles:
    return record.evidence(given.path["id"])


def _read_evidence(record: RecordView, given: Parameters) -> record_types.EvidencePart:
    limit_bytes = given.integer("limit", FILE_LIMIT_BYTES, 1 << 62)
    return record.evidence_part(given.path["id"], given.query.get("name", ""), limit_bytes)


def _list_remedies(record: RecordView, given: Parameters) -> record_types.RemedyReport:
    return record.remedies(given.query.get("job"), given.integer("limit", 20, INCIDENTS_AT_ONCE))


def _list_alerts(record: RecordView, given: Parameters) -> types.AlertsReport:
    return record.alerts(given.integer("limit", 10, INCIDENTS_AT_ONCE))


def _read_disk_use(record: RecordView, _given: Parameters) -> record_types.DiskUse:
    return record.disk_use()


def _list_checkpoints(record: RecordView, given: Parameters) -> Checkpoints:
    job = given.path["job"]
    return Checkpoints(job=job, checkpoints=list(record.checkpoints(job)[:CHECKPOINTS_AT_ONCE]))


def _read_account(record: RecordView, given: Parameters) -> record_types.JobAccount:
    return record.account(given.path["job"])


def _read_output(record: RecordView, given: Parameters) -> types.Output:
    after, attempt = given.integer("after", None, 1 << 62), given.integer("attempt", None, 1 << 31)
    return record.output(given.path["job"], after, attempt, given.integer("lines", 100, LINES_AT_ONCE))


READS = (
    Read("/v1/incidents", _list_incidents),
    Read("/v1/incidents/{id}", _read_incident),
    Read("/v1/incidents/{id}/evidence", _list_evidence),
    Read("/v1/incidents/{id}/evidence/file", _read_evidence),
    Read("/v1/shadows", _list_shadows),
    Read("/v1/remedies", _list_remedies),
    Read("/v1/alerts", _list_alerts),
    Read("/v1/disk", _read_disk_use, looks_at_files=True),
    Read("/v1/jobs/{job}/checkpoints", _list_checkpoints, looks_at_files=True),
    Read("/v1/jobs/{job}/account", _read_account),
    Read("/v1/jobs/{job}/output", _read_output, looks_at_files=True),
)


def find_read(path: str) -> tuple[Read, Mapping[str, str]] | None:
    """Return the question that a path (percent-encoded, without a query) asks, and the parameters in it."""
    for read in READS:
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", read.route)
        if found := re.fullmatch(pattern, path):
            return read, {name: unquote(text) for name, text in found.groupdict().items()}
    return None
