"""The daemon as the control socket sees it: queries go to the loop or the record, requests into the inbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor import __version__
from supervisor.control import types
from supervisor.control.alerts import alerts_report
from supervisor.control.checkpoint_list import listed
from supervisor.control.evidence import evidence_files, evidence_part
from supervisor.control.present import (
    gpu_status,
    host_status,
    incident_entry,
    job_account,
    shadow_entry,
    story_lines,
)
from supervisor.control.present_remedies import remedy_report
from supervisor.control.tail import tail
from supervisor.control.view import NoSuchEvidence, NoSuchIncident, NoSuchJob, NoSuchReceiver, Refused
from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.readings import GpuReading, HostReading
from supervisor.daemon.alerting import Announcer
from supervisor.daemon.clock import Clock
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.loop import Loop
from supervisor.daemon.status import job_status
from supervisor.store.archive import Archive
from supervisor.store.timelines import lives

CLEARED = "evidence is cleared away after retention.incidents_days"


class NewestReadings:
    """The newest readings from the loop; other threads read them, and each update replaces the complete value."""

    def __init__(self) -> None:
        self.gpus: dict[str, GpuReading] = {}
        self.host: HostReading | None = None

    def take(self, event: ev.Event) -> None:
        """Take in an event."""
        if isinstance(event, ev.GpusRead):
            self.gpus = {**self.gpus, **{reading.gpu: reading for reading in event.readings}}
        elif isinstance(event, ev.HostRead):
            self.host = event.reading


class DaemonView:
    """Implements `control.view.View`."""

    def __init__(  # noqa: PLR0913 - it is the meeting point of all rooms
        self,
        *,
        clock: Clock,
        inbox: Inbox,
        loop: Loop,
        newest: NewestReadings,
        archive: Archive,
        state: Path,
        database: str,
        problem: Callable[[], str | None],
        announcer: Announcer,
        reload: Callable[[], types.ReloadReport],
        doctor: Callable[[], Sequence[types.DoctorLine]],
    ) -> None:
        self._clock = clock
        self._inbox = inbox
        self._loop = loop
        self._newest = newest
        self._archive = archive
        self._state = state
        self._database = database
        self._problem = problem
        self._announcer = announcer
        self._reload = reload
        self._doctor = doctor
        self._began = clock.now()

    def status(self) -> types.Status:
        """Return everything at a glance, as the deciding thread knows it."""
        return self._inbox.ask(self._status)

    def _status(self) -> types.Status:
        now = self._clock.now()
        return types.Status(
            daemon=types.DaemonStatus(
                version=__version__,
                pid=os.getpid(),
                uptime_s=now.seconds_since(self._began),
                state_dir=str(self._state),
                database=self._database,
                problem=self._problem(),
                alert_problems=list(self._announcer.failing()),
            ),
            jobs=[job_status(job_state, now) for job_state in self._loop.job_states.values()],
            gpus=[gpu_status(reading) for reading in self._newest.gpus.values()],
            host=host_status(self._newest.host) if self._newest.host else None,
        )

    def ask(self, job: str, ask: ev.Ask, by: str, *, fresh: bool) -> None:
        """Put a request into the inbox."""
        now = self._clock.now()
        self._inbox.ask(lambda: _check(self._job(job), ask, fresh=fresh))
        self._inbox.put(ev.UserRequest(at=now, job=job, ask=ask, by=by, fresh=fresh))

    def _job(self, name: str) -> Job:
        job_state = self._loop.job_states.get(name)
        if job_state is None:
            raise NoSuchJob(name, sorted(self._loop.job_states))
        return job_state.job

    def incidents(self, job: str | None, limit: int) -> Sequence[types.IncidentEntry]:
        """Return incidents from the record, newest first."""
        found = self._archive.incidents(job, limit)
        if not found:
            self._check_known(job)
        return [incident_entry(incident) for incident in found]

    def _check_known(self, job: str | None) -> None:
        """Raise NoSuchJob for a job that is neither configured nor in the record."""
        if job is None or job in [recorded.name for recorded in self._archive.jobs()]:
            return
        self._inbox.ask(lambda: self._job(job))

    def shadows(self, job: str | None, limit: int) -> Sequence[types.ShadowEntry]:
        """Return what rules in shadow would have acted on, newest first."""
        found = self._archive.notes(job, limit)
        if not found:
            self._check_known(job)
        return [shadow_entry(note) for note in found]

    def incident(self, incident_id: str) -> types.IncidentDetail | None:
        """Return one incident with its flags and decisions."""
        story = self._archive.incident(incident_id)
        if story is None:
            return None
        return types.IncidentDetail(incident=incident_entry(story.incident), story=story_lines(story))

    def evidence(self, incident_id: str) -> types.EvidenceFiles:
        """Return the files of an incident's evidence, which lie where only the daemon gets in."""
        folder = self._evidence_folder(incident_id)
        try:
            return evidence_files(folder)
        except OSError as error:
            raise NoSuchEvidence(f"{folder}: {error.strerror}", CLEARED) from error

    def evidence_part(self, incident_id: str, name: str, limit_bytes: int) -> types.EvidencePart:
        """Return the end of one file of the evidence."""
        folder = self._evidence_folder(incident_id)
        try:
            return evidence_part(folder, name, limit_bytes)
        except OSError as error:
            raise NoSuchEvidence(f"{folder}/{name}: {error.strerror}", CLEARED) from error

    def _evidence_folder(self, incident_id: str) -> str:
        story = self._archive.incident(incident_id)
        if story is None:
            raise NoSuchIncident(f"no incident {incident_id!r} is recorded", "supervisorctl history lists them")
        folder = story.incident.evidence
        if folder is None:
            raise NoSuchEvidence(f"no evidence was collected for {incident_id}", "see supervisorctl show")
        return folder

    def checkpoints(self, job: str) -> Sequence[types.CheckpointEntry]:
        """Return the recorded checkpoints of a job."""
        self._inbox.ask(lambda: self._job(job))
        return listed(known_checkpoint.checkpoint for known_checkpoint in self._archive.checkpoints(job))

    def account(self, job: str) -> types.JobAccount:
        """Return where every second of a job's life went, from the record."""
        self._inbox.ask(lambda: self._job(job))
        return job_account(job, lives(self._archive, job), self._clock.now().unix_s)

    def remedies(self, job: str | None, limit: int) -> types.RemedyReport:
        """Return the remedies in force, as the deciding thread knows them, and those tried, from the record."""

        def held() -> list[Job]:
            return (
                [self._job(job)] if job is not None else [job_state.job for job_state in self._loop.job_states.values()]
            )

        jobs = self._inbox.ask(held)
        return remedy_report(jobs, self._archive.remedies(job, limit), self._archive.experience())

    def alerts(self, limit: int) -> types.AlertsReport:
        """Return the receivers of alerts and the newest alerts, from the record."""
        floors, problems = self._inbox.ask(lambda: (dict(self._announcer.floors()), dict(self._announcer.problems())))
        return alerts_report(self._archive, {name: floors[name].word for name in floors}, problems, limit)

    def send_test_alert(self, receiver: str) -> str:
        """Queue a test alert."""
        return self._inbox.ask(lambda: self._queue_test_alert(receiver))

    def _queue_test_alert(self, receiver: str) -> str:
        floors, problems = self._announcer.floors(), self._announcer.problems()
        if receiver not in floors:
            raise NoSuchReceiver(receiver, sorted(floors))
        if receiver in problems:
            raise Refused(problems[receiver], "the daemon's user must be able to read it; supervisorctl config check")
        return self._announcer.queue_test(receiver, self._clock.now())

    def output(self, job: str, after: int | None, attempt: int | None, lines: int) -> types.Output:
        """Return a part of the newest attempt's folded output."""
        number = self._inbox.ask(lambda: self._job(job).number)
        folder = self._state / "jobs" / job / str(number)
        part = tail(folder, fo.FOLDED, after if attempt == number else None, lines)
        return types.Output(job=job, attempt=number, text=part.text, next_offset=part.next_offset)

    def doctor(self) -> Sequence[types.DoctorLine]:
        """Return what the daemon finds of its surroundings."""
        return self._doctor()

    def reload(self) -> types.ReloadReport:
        """Read the configuration again."""
        return self._inbox.ask(self._reload)


def _check(job: Job, ask: ev.Ask, *, fresh: bool) -> None:
    """Raise Refused where a request does not apply to the job's phase."""
    if ask is ev.Ask.START and job.phase in ALIVE:
        raise Refused(f"{job.name} is already {job.phase.value}", f"supervisorctl restart {job.name}")
    if ask is ev.Ask.START and fresh and job.phase is Phase.BACKOFF:
        raise Refused(f"{job.name} is waiting to be resumed", f"supervisorctl stop {job.name}, then start it --fresh")
    if ask is ev.Ask.STOP and job.phase in (Phase.STOPPED, Phase.FINISHED, Phase.FAILED):
        raise Refused(f"{job.name} is already {job.phase.value}")
