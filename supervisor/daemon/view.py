"""The daemon as the control socket sees it: questions go to the loop or the record, wishes into the inbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor import __version__
from supervisor.control import types
from supervisor.control.saved import listed
from supervisor.control.shapes import (
    gpu_status,
    host_status,
    incident_entry,
    job_account,
    shadow_entry,
    story_lines,
)
from supervisor.control.tail import tail
from supervisor.control.treatment import remedy_report
from supervisor.control.view import NoSuchJob, Refused
from supervisor.core import events as ev
from supervisor.core import folder as fo
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.readings import GpuReading, HostReading
from supervisor.daemon.attempt_watch import Clock
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.loop import Loop
from supervisor.daemon.status import job_status
from supervisor.store.archive import Archive
from supervisor.store.lives import lives


class Newest:
    """The newest readings, as the loop hands them on; read by other threads, replaced whole."""

    def __init__(self) -> None:
        self.gpus: dict[str, GpuReading] = {}
        self.host: HostReading | None = None

    def take(self, event: ev.Event) -> None:
        """Take in an event."""
        if isinstance(event, ev.GpusRead):
            self.gpus = {**self.gpus, **{one.gpu: one for one in event.readings}}
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
        newest: Newest,
        archive: Archive,
        state: Path,
        database: str,
        problem: Callable[[], str | None],
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
            ),
            jobs=[job_status(dossier, now) for dossier in self._loop.dossiers.values()],
            gpus=[gpu_status(one) for one in self._newest.gpus.values()],
            host=host_status(self._newest.host) if self._newest.host else None,
        )

    def ask(self, job: str, ask: ev.Ask, by: str, *, fresh: bool) -> None:
        """Put a wish into the inbox."""
        now = self._clock.now()
        self._inbox.ask(lambda: _check(self._job(job), ask, fresh=fresh))
        self._inbox.put(ev.Asked(at=now, job=job, ask=ask, by=by, fresh=fresh))

    def _job(self, name: str) -> Job:
        dossier = self._loop.dossiers.get(name)
        if dossier is None:
            raise NoSuchJob(name, sorted(self._loop.dossiers))
        return dossier.job

    def incidents(self, job: str | None, limit: int) -> Sequence[types.IncidentEntry]:
        """Return incidents from the record, newest first."""
        return [incident_entry(one) for one in self._archive.incidents(job, limit)]

    def shadows(self, job: str | None, limit: int) -> Sequence[types.ShadowEntry]:
        """Return what rules in shadow would have acted on, newest first."""
        return [shadow_entry(one) for one in self._archive.notes(job, limit)]

    def incident(self, incident_id: str) -> types.IncidentDetail | None:
        """Return one incident with its flags and decisions."""
        story = self._archive.incident(incident_id)
        if story is None:
            return None
        return types.IncidentDetail(incident=incident_entry(story.incident), story=story_lines(story))

    def checkpoints(self, job: str) -> Sequence[types.CheckpointEntry]:
        """Return what is known of a job's checkpoints."""
        self._inbox.ask(lambda: self._job(job))
        return listed(one.checkpoint for one in self._archive.checkpoints(job))

    def account(self, job: str) -> types.JobAccount:
        """Return where every second of a job's life went, from the record."""
        self._inbox.ask(lambda: self._job(job))
        return job_account(job, lives(self._archive, job), self._clock.now().unix_s)

    def remedies(self, job: str | None, limit: int) -> types.RemedyReport:
        """Return the remedies in force, as the deciding thread knows them, and those tried, from the record."""

        def held() -> list[Job]:
            return [self._job(job)] if job is not None else [one.job for one in self._loop.dossiers.values()]

        jobs = self._inbox.ask(held)
        return remedy_report(jobs, self._archive.remedies(job, limit), self._archive.experience())

    def output(self, job: str, after: int | None, attempt: int | None, lines: int) -> types.Output:
        """Return a part of the newest attempt's folded output."""
        number = self._inbox.ask(lambda: self._job(job).number)
        path = self._state / "jobs" / job / str(number) / fo.FOLDED
        part = tail(path, after if attempt == number else None, lines)
        return types.Output(job=job, attempt=number, text=part.text, next_offset=part.next_offset)

    def doctor(self) -> Sequence[types.DoctorLine]:
        """Return what the daemon finds of its surroundings."""
        return self._doctor()

    def reload(self) -> types.ReloadReport:
        """Read the configuration again."""
        return self._inbox.ask(self._reload)


def _check(job: Job, ask: ev.Ask, *, fresh: bool) -> None:
    """Raise Refused where a wish makes no sense now."""
    if ask is ev.Ask.START and job.phase in ALIVE:
        raise Refused(f"{job.name} is {job.phase.value} already", f"supervisorctl restart {job.name}")
    if ask is ev.Ask.START and fresh and job.phase is Phase.BACKOFF:
        raise Refused(f"{job.name} waits to be resumed", f"supervisorctl stop {job.name}, then start it --fresh")
    if ask is ev.Ask.STOP and job.phase in (Phase.STOPPED, Phase.FINISHED, Phase.FAILED):
        raise Refused(f"{job.name} is {job.phase.value} already")
