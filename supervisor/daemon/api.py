"""The daemon as the control socket sees it: the live state from the loop, the record, and requests to the inbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from supervisor import __version__
from supervisor.control import record_types, types
from supervisor.control.alerts import ReceiverState
from supervisor.control.present import gpu_status, host_status
from supervisor.control.record_view import RecordView
from supervisor.control.refusals import NoSuchIncident, NoSuchJob, NoSuchReceiver, Refused
from supervisor.core import events as ev
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.memory.kept import KeptEstimate
from supervisor.daemon.alerts.alerting import Announcer
from supervisor.daemon.clock import Clock
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.loop import Loop
from supervisor.daemon.record.kept_estimates import KeptEstimates
from supervisor.daemon.status import job_status
from supervisor.daemon.stop_requests import StopRequests
from supervisor.daemon.telemetry import NewestReadings
from supervisor.daemon.tunes.tuner import Tuner
from supervisor.metrics.known import Known
from supervisor.store.archive import Archive

RECORD_LIMIT_S = 0.25
"""How long an answer of the record waits for what is on its way to the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFacts:
    """Implements `control.record_view.Facts`: asked in threads of the server, answered by the deciding thread."""

    unreadable_hint: ClassVar[str] = "the daemon's user must be able to read it; see the daemon's log"

    clock: Clock
    inbox: Inbox
    loop: Loop
    announcer: Announcer

    def now_unix_s(self) -> float:
        """Return the time, in Unix seconds."""
        return self.clock.now().unix_s

    def job_names(self) -> Collection[str]:
        """Return the names of the jobs that are supervised."""
        return self.inbox.ask(lambda: frozenset(self.loop.job_states))

    def jobs(self) -> Sequence[Job]:
        """Return the jobs as the deciding thread knows them."""
        return self.inbox.ask(lambda: [job_state.job for job_state in self.loop.job_states.values()])

    def receivers(self) -> Mapping[str, ReceiverState]:
        """Return the receivers of alerts with their problems."""
        return self.inbox.ask(self._collect_receivers)

    def _collect_receivers(self) -> dict[str, ReceiverState]:
        problems, policies, now = self.announcer.problems(), self.announcer.policies(), self.clock.now()
        warnings = self.announcer.warnings()
        states = {}
        for name, floor in self.announcer.floors().items():
            quiet = policies[name].quiet if name in policies else None
            states[name] = ReceiverState(
                kind=policies[name].kind if name in policies else "webhook",
                min_severity=floor.label,
                problem=problems.get(name),
                warning=warnings.get(name),
                muted_until=self.announcer.muted_until(name, now),
                quiet=quiet is not None and quiet.includes(now.unix_s),
            )
        return states


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDeps:
    """What the view answers from: the meeting point of all rooms."""

    clock: Clock
    inbox: Inbox
    loop: Loop
    newest: NewestReadings
    archive: Archive
    state: Path
    database: str
    problem: Callable[[], str | None]
    announcer: Announcer
    reload: Callable[[], types.ReloadReport]
    preview_reload: Callable[[], types.ReloadReport]
    doctor: Callable[[], Sequence[types.DoctorLine]]
    forget: Callable[[str], record_types.Forgotten]
    known: Callable[[], Known]
    tuner: Tuner
    await_record: Callable[[float], object]
    requests: StopRequests
    estimates: KeptEstimates
    not_configured: Callable[[], list[str]]


class DaemonView:
    """Implements `control.view.View`."""

    def __init__(self, deps: ViewDeps) -> None:
        self._deps = deps
        self._began = deps.clock.now()
        facts = LoopFacts(clock=deps.clock, inbox=deps.inbox, loop=deps.loop, announcer=deps.announcer)
        self._record = RecordView(deps.archive, deps.state, facts)

    @property
    def record(self) -> RecordView:
        """The record, once it holds what a status before this showed; a commit takes no longer on a disk that works."""
        self._deps.await_record(RECORD_LIMIT_S)
        return self._record

    def status(self, *, watched: bool = True) -> types.Status:
        """Return everything at a glance, as the deciding thread knows it; `watched`: with the gauges of the rules."""
        return self._deps.inbox.ask(lambda: self._compose_status(watched=watched))

    def _compose_status(self, *, watched: bool) -> types.Status:
        now = self._deps.clock.now()
        return types.Status(
            daemon=types.DaemonStatus(
                version=__version__,
                pid=os.getpid(),
                uptime_s=now.seconds_since(self._began),
                state_dir=str(self._deps.state),
                database=self._deps.database,
                problem=self._deps.problem(),
                alert_problems=[
                    *self._deps.announcer.failing(),
                    *self._deps.announcer.warnings().values(),
                    *self._deps.announcer.list_mutes(now),
                ],
                not_configured=self._deps.not_configured(),
            ),
            jobs=[job_status(job_state, now, watched=watched) for job_state in self._deps.loop.job_states.values()],
            gpus=[gpu_status(reading) for reading in self._deps.newest.gpus.values()],
            host=host_status(self._deps.newest.host) if self._deps.newest.host else None,
        )

    def metrics(self) -> Known:
        """Return what metrics are made of."""
        return self._deps.known()

    def ask(self, job: str, ask: ev.Ask, by: str, *, fresh: bool) -> None:
        """Put a request into the inbox, once it is kept where a daemon that dies before its commit leaves it."""
        request = ev.UserRequest(at=self._deps.clock.now(), job=job, ask=ask, by=by, fresh=fresh)
        self._deps.inbox.ask(lambda: _check_applies(self._find_job(job), ask, fresh=fresh))
        self._deps.requests.ask(request, self._deps.inbox.put)

    def _find_job(self, name: str) -> Job:
        job_state = self._deps.loop.job_states.get(name)
        if job_state is None:
            raise NoSuchJob(name, sorted(self._deps.loop.job_states))
        return job_state.job

    def keep_estimate(self, job: str, given: types.EstimateBody) -> types.EstimateKept:
        """Keep an estimate for the remedies of a job."""
        return self._deps.inbox.ask(lambda: self._keep_estimate(job, given))

    def _keep_estimate(self, job: str, given: types.EstimateBody) -> types.EstimateKept:
        self._find_job(job)
        estimate = KeptEstimate(
            torch=given.torch,
            card_bytes=given.card_bytes,
            configured=given.configured,
            largest=given.largest,
            ran=given.ran,
        )
        if not self._deps.estimates.keep(job, given.command_sha256, estimate):
            raise Refused(f"{job} has another command here", "supervisorctl reload, then estimate it again")
        return types.EstimateKept(job=job)

    def send_test_alert(self, receiver: str) -> str:
        """Queue a test alert."""
        return self._deps.inbox.ask(lambda: self._queue_test_alert(receiver))

    def _queue_test_alert(self, receiver: str) -> str:
        floors, problems = self._deps.announcer.floors(), self._deps.announcer.problems()
        if receiver not in floors:
            raise NoSuchReceiver(receiver, sorted(floors))
        if receiver in problems:
            raise Refused(problems[receiver], "the daemon's user must be able to read it; supervisorctl config check")
        return self._deps.announcer.queue_test(receiver, self._deps.clock.now())

    def mute_alerts(self, receiver: str | None, seconds: float) -> types.AlertsMuted:
        """Send one receiver, or all, nothing for a time."""
        return self._deps.inbox.ask(lambda: self._mute_alerts(receiver, seconds))

    def _mute_alerts(self, receiver: str | None, seconds: float) -> types.AlertsMuted:
        known = sorted(self._deps.announcer.floors())
        if receiver is not None and receiver not in known:
            raise NoSuchReceiver(receiver, known)
        names, until = known if receiver is None else [receiver], self._deps.clock.now().unix_s + seconds
        self._deps.announcer.mute(names, until)
        return types.AlertsMuted(receivers=names, until=until if seconds > 0 else None)

    def acknowledge_alert(self, incident: str) -> types.AlertAcknowledged:
        """End the reminders of a training that stands given up."""
        return self._deps.inbox.ask(lambda: self._acknowledge_alert(incident))

    def _acknowledge_alert(self, incident: str) -> types.AlertAcknowledged:
        job = self._deps.announcer.acknowledge(incident)
        if job is None:
            known = f"{incident!r} is neither a training nor its latest incident"
            raise NoSuchIncident(known, "name the training: supervisorctl status lists those that have failed")
        if job.phase is not Phase.FAILED:
            raise Refused(f"{job.name} is {job.phase.value}: there are no reminders of it")
        return types.AlertAcknowledged(job=job.name, incident=job.incident.id if job.incident else None)

    def forget(self, job: str) -> record_types.Forgotten:
        """Remove what is left of a job that is not configured."""
        return self._deps.forget(job)

    def tune(self, job: str, given: types.TuneBody) -> record_types.TuneReport:
        """Begin, stop or undo a tune."""
        self._deps.inbox.ask(lambda: self._find_job(job))
        if given.undo:
            changed = self._deps.tuner.undo(job)
            old = self._deps.tuner.find_old_start(job) if changed else None
            why = "" if old is None else f"its next start is without {old}: supervisorctl restart {job}"
            problem = None if changed else "there was nothing to undo"
            return record_types.TuneReport(job=job, state="ended", problem=problem, why=why)
        if given.stop:
            if not self._deps.tuner.stop(job):
                raise Refused(f"{job} is not being tuned", f"supervisorctl tune {job}")
        else:
            self._deps.tuner.start(job, given)
        return self._deps.tuner.report(job)

    def tune_report(self, job: str) -> record_types.TuneReport:
        """Return how a tune stands."""
        self._deps.inbox.ask(lambda: self._find_job(job))
        return self._deps.tuner.report(job)

    def doctor(self) -> Sequence[types.DoctorLine]:
        """Return what the daemon finds of its surroundings."""
        return self._deps.doctor()

    def reload(self, *, dry_run: bool = False) -> types.ReloadReport:
        """Read the configuration again; a dry run only reports what would be applied."""
        return self._deps.preview_reload() if dry_run else self._deps.reload()


def _check_applies(job: Job, ask: ev.Ask, *, fresh: bool) -> None:
    """Raise Refused where a request does not apply to the job's phase."""
    if ask is ev.Ask.START and job.phase in ALIVE:
        raise Refused(f"{job.name} is already {job.phase.value}", f"supervisorctl restart {job.name}")
    if ask is ev.Ask.START and fresh and job.phase is Phase.BACKOFF:
        raise Refused(f"{job.name} is waiting to be resumed", f"supervisorctl stop {job.name}, then start it --fresh")
    if ask is ev.Ask.STOP and job.phase in (Phase.STOPPED, Phase.FINISHED, Phase.FAILED):
        raise Refused(f"{job.name} is already {job.phase.value}")
