"""A daemon of a few honest lines behind a real control server: what it is told it keeps, what is asked it answers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from msgspec import structs

from supervisor.control import record_types, types
from supervisor.control.evidence import evidence_files, evidence_part
from supervisor.control.listen import bind
from supervisor.control.present import job_account
from supervisor.control.record_view import IncidentDetail, RecordView
from supervisor.control.refusals import NoSuchEvidence, NoSuchIncident, NoSuchJob, NoSuchReceiver, Refused
from supervisor.control.server import ControlServer
from supervisor.control.tail import tail
from supervisor.core.events import Ask
from supervisor.core.moments import Moment
from supervisor.core.reports.timeline import Life
from supervisor.metrics.known import Known, TrainingKnown

DAEMON = types.DaemonStatus(version="0.1.0", pid=4711, uptime_s=93_784.0, state_dir="/s", database="/s/supervisor.db")
KNOWN = Known(
    now=Moment(93_784.0, 1_763_164_900.0),
    stale_after_s=3.0,
    version="0.1.0",
    python="3.11.2",
    sqlite="3.40.1",
    started_unix_s=1_763_071_116.0,
    trainings=(TrainingKnown(name="yolo", phase="running", attempt=3),),
)
YOLO = types.JobStatus(name="yolo", phase="running", stage="step", attempt=3, pid=5000)
FREEZE = record_types.IncidentEntry(
    id="yolo-2",
    job="yolo",
    attempt=2,
    at=1_763_164_800.0,
    rule="stall",
    severity="critical",
    message="no step for 61 s in stage step (limit 60 s), last step 80321",
    decision="stop",
    outcome="resumed",
    last_step=80_321,
    resumed_from=record_types.ResumedFrom(path="/d/weights/last.pt", epoch=0, step=78_000),
    resumed_at=1_763_164_905.0,
    lost_steps=2_321,
    downtime_s=105.0,
    evidence="/s/jobs/yolo/2/evidence/yolo-2",
)

DELIVERED = types.AlertEntry(
    id="msg_1", receiver="phone", type="test", state="delivered", tries=1, queued_at=1_763_165_500.0
)


@dataclass
class FakeView:
    """Answers from its fields; `asked` is what came."""

    folder: Path = Path("/nonexistent")
    jobs: list[types.JobStatus] = field(default_factory=lambda: [YOLO])
    gpus: list[types.GpuStatus] = field(default_factory=list)
    host: types.HostStatus | None = None
    daemon: types.DaemonStatus = DAEMON
    history: list[record_types.IncidentEntry] = field(default_factory=lambda: [FREEZE])
    absences: list[record_types.OutageEntry] = field(default_factory=list)
    shadowed: list[record_types.ShadowEntry] = field(default_factory=list)
    saved: list[record_types.CheckpointEntry] = field(default_factory=list)
    lives: tuple[Life, ...] = ()
    lines: list[types.DoctorLine] = field(default_factory=list)
    report: types.ReloadReport = field(default_factory=types.ReloadReport)
    report_of_remedies: record_types.RemedyReport = field(default_factory=record_types.RemedyReport)
    receivers: list[types.AlertReceiver] = field(default_factory=list)
    sent: list[types.AlertEntry] = field(default_factory=list)
    answer_to_test: types.AlertEntry = DELIVERED
    mutes: list[tuple[str | None, float]] = field(default_factory=list)
    estimates: list[types.EstimateBody] = field(default_factory=list)
    refusal: str | None = None
    defect: Exception | None = None
    record_defect: Exception | None = None
    disk: record_types.DiskUse = field(
        default_factory=lambda: record_types.DiskUse(state_dir="/s", code_bytes=0, database_bytes=0)
    )
    tuned: record_types.TuneReport | None = None
    known: Known = KNOWN
    forgotten: list[str] = field(default_factory=list)
    dry_runs: list[bool] = field(default_factory=list)
    """Of each reload, whether it was a dry run."""
    asked: list[tuple[str, Ask, str, bool]] = field(default_factory=list)

    def status(self, *, watched: bool = True) -> types.Status:
        if self.defect is not None:
            raise self.defect
        jobs = self.jobs if watched else [structs.replace(job, watched=[]) for job in self.jobs]
        return types.Status(daemon=self.daemon, jobs=jobs, gpus=self.gpus, host=self.host)

    def metrics(self) -> Known:
        return self.known

    def ask(self, job: str, ask: Ask, by: str, *, fresh: bool) -> None:
        self._known(job)
        if self.refusal is not None:
            raise Refused(self.refusal)
        self.asked.append((job, ask, by, fresh))

    @property
    def record(self) -> RecordView:
        """It answers for the record itself."""
        if self.record_defect is not None:
            raise self.record_defect
        return cast("RecordView", self)

    def incidents(self, job: str | None, limit: int) -> list[record_types.IncidentEntry]:
        if job is not None:
            self._known(job)
        return [item for item in self.history if job in (None, item.job)][:limit]

    def outages(self, job: str | None, limit: int) -> list[record_types.OutageEntry]:
        return [item for item in self.absences if job in (None, item.job)][:limit]

    def shadows(self, job: str | None, limit: int) -> list[record_types.ShadowEntry]:
        return [item for item in self.shadowed if job in (None, item.job)][:limit]

    def incident(self, incident_id: str) -> IncidentDetail:
        story = [record_types.StoryLine(at=1_763_164_801.0, what="decision", detail="stop")]
        for item in self.history:
            if item.id == incident_id:
                return IncidentDetail(incident=item, story=story)
        raise NoSuchIncident(f"no incident {incident_id!r} is recorded", "supervisorctl history lists them")

    def evidence(self, incident_id: str) -> record_types.EvidenceFiles:
        return evidence_files(self._evidence(incident_id))

    def evidence_part(self, incident_id: str, name: str, limit_bytes: int) -> record_types.EvidencePart:
        try:
            return evidence_part(self._evidence(incident_id), name, limit_bytes)
        except OSError as error:
            raise NoSuchEvidence(str(error)) from error

    def _evidence(self, incident_id: str) -> str:
        found = next((item.evidence for item in self.history if item.id == incident_id), None)
        if found is None or not Path(found).is_dir():
            raise NoSuchEvidence(f"no evidence of {incident_id}")
        return found

    def checkpoints(self, job: str) -> list[record_types.CheckpointEntry]:
        self._known(job)
        return self.saved

    def account(self, job: str) -> record_types.JobAccount:
        self._known(job)
        return job_account(job, self.lives, (), 1_763_164_900.0)

    def remedies(self, job: str | None, limit: int) -> record_types.RemedyReport:
        if job is not None:
            self._known(job)
        return record_types.RemedyReport(
            in_force=self.report_of_remedies.in_force,
            tried=self.report_of_remedies.tried[:limit],
            learned=self.report_of_remedies.learned,
        )

    def alerts(self, limit: int) -> types.AlertsReport:
        return types.AlertsReport(receivers=self.receivers, alerts=self.sent[:limit])

    def keep_estimate(self, job: str, given: types.EstimateBody) -> types.EstimateKept:
        self._known(job)
        if self.refusal is not None:
            raise Refused(self.refusal)
        self.estimates.append(given)
        return types.EstimateKept(job=job)

    def send_test_alert(self, receiver: str) -> str:
        if receiver not in [known.name for known in self.receivers]:
            raise NoSuchReceiver(receiver, [known.name for known in self.receivers])
        self.sent.insert(0, self.answer_to_test)
        return self.answer_to_test.id

    def mute_alerts(self, receiver: str | None, seconds: float) -> types.AlertsMuted:
        known = [known.name for known in self.receivers]
        if receiver is not None and receiver not in known:
            raise NoSuchReceiver(receiver, known)
        self.mutes.append((receiver, seconds))
        names = known if receiver is None else [receiver]
        return types.AlertsMuted(receivers=names, until=1_763_165_520.0 + seconds if seconds else None)

    def acknowledge_alert(self, incident: str) -> types.AlertAcknowledged:
        for item in self.history:
            if item.id == incident:
                return types.AlertAcknowledged(job=item.job, incident=incident)
        raise NoSuchIncident(f"{incident!r} is the latest incident of no training")

    def output(self, job: str, after: int | None, attempt: int | None, lines: int) -> types.Output:
        self._known(job)
        part = tail(self.folder, "output.txt", after if attempt == 3 else None, lines)
        return types.Output(job=job, attempt=3, text=part.text, next_offset=part.next_offset)

    def forget(self, job: str) -> record_types.Forgotten:
        self._known(job)
        if self.refusal is not None:
            raise Refused(self.refusal)
        self.forgotten.append(job)
        return record_types.Forgotten(job=job, rows=12, folder_removed=True)

    def tune(self, job: str, _given: types.TuneBody) -> record_types.TuneReport:
        return self.tune_report(job)

    def tune_report(self, job: str) -> record_types.TuneReport:
        self._known(job)
        if self.tuned is None or self.tuned.job != job:
            raise Refused(f"{job} was not tuned", f"supervisorctl tune {job}")
        return self.tuned

    def disk_use(self) -> record_types.DiskUse:
        return self.disk

    def doctor(self) -> list[types.DoctorLine]:
        return self.lines

    def reload(self, *, dry_run: bool = False) -> types.ReloadReport:
        self.dry_runs.append(dry_run)
        return self.report

    def _known(self, job: str) -> None:
        names = [item.name for item in self.jobs]
        if job not in names:
            raise NoSuchJob(job, names)


@contextmanager
def serving(view: FakeView) -> Iterator[Path]:
    """A real server with `view` behind it; yields the path of its socket."""
    with tempfile.TemporaryDirectory() as folder:
        server = ControlServer(view, bind(Path(folder) / "control.sock"), unlink=True, tuning=view)
        server.start()
        try:
            yield server.path
        finally:
            server.stop()
