"""Bodies on the control socket, one class each; times are Unix seconds, unknown is null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, defstruct, field

from supervisor.core.measured import measures_of
from supervisor.core.readings import GpuReading, HostReading

SCHEMA = 1
"""Raised when a field changes its meaning; new fields alone do not raise it."""


# --- what is asked ------------------------------------------------------------------------------------------------


class StartBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/jobs/JOB/start."""

    fresh: bool = False
    """From the beginning, whatever was saved."""


class ReloadBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/reload."""

    dry_run: bool = False
    """Report what would be applied and what refused, and change nothing."""


class TuneBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/jobs/JOB/tune."""

    dry_run: bool = False
    """Diagnose, and say what would be tried."""
    for_s: Annotated[float, Meta(ge=10, le=86_400)] = 900.0
    steps: Annotated[int, Meta(ge=100, le=1_000_000)] = 800
    """By which it has ended, or about so; more are made where steps are fast."""
    may: list[Literal["precision", "restart"]] = field(default_factory=list)
    """What the owner permits beyond changes that leave the training what it is."""
    stop: bool = False
    """End the tune under way instead."""
    undo: bool = False
    """Put the owner's settings back instead, also for the next attempts."""


class MuteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/alerts/mute."""

    seconds: Annotated[float, Meta(ge=0, le=86_400)]
    """0: end the mute."""
    receiver: str | None = None
    """None: all."""


class AcknowledgeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/alerts/ack."""

    incident: str
    """Of a training that stands given up; or the name of that training."""


class EmptyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of the actions that take nothing: `{}` or no bytes at all."""


# --- GET /v1/status -----------------------------------------------------------------------------------------------


class DaemonStatus(Struct, frozen=True, kw_only=True):
    """The daemon itself."""

    version: str
    pid: int
    uptime_s: float
    state_dir: str
    database: str
    """Without a password."""
    problem: str | None = None
    """What keeps it from doing all of its work (database lost, disk full)."""
    alert_problems: list[str] = field(default_factory=list)
    """A sentence for each receiver of alerts that cannot be sent to, whose alerts wait, or that is muted."""


class Criterion(Struct, frozen=True, kw_only=True):
    """One of the owner's success criteria, of [jobs.NAME.expect]."""

    name: str
    verdict: Literal["met", "not_met", "unknown"]
    text: str


class WatchedStatus(Struct, frozen=True, kw_only=True):
    """What one rule measures, and how near it is to its limit."""

    rule: str
    what: str
    group: str = ""
    """steps, losses, gpus, memory, storage, pace, process"""
    unit: str = ""
    now: float | None = None
    limit: float | None = None
    """None: a condition that no number is near to."""
    below: bool = False
    """Whether it is the smaller values that are bad."""
    share: float | None = None
    """Of the way to the limit, 0 to 1."""
    held_s: float | None = None
    """How long it has been beyond the limit."""
    hold_s: float | None = None
    """How long it has to be."""
    lacks: str | None = None
    """What else must agree and does not."""
    reached: bool = False
    """Whether the rule flags now."""
    severity: str = "warning"
    """Of that flag: critical stops the training, warning sends an alert, info is recorded."""
    learned: bool = False
    """Whether the limit was learned from this job's own runs."""
    enabled: bool = True
    """False: the rule is switched off in the configuration."""
    shadow: bool = False
    """Whether the rule is on probation: it records and never acts."""
    not_watched: str | None = None
    """Why it is not watched now."""


class JobStatus(Struct, frozen=True, kw_only=True):
    """Where one job stands."""

    name: str
    phase: str
    """pending, starting, running, stopping, killing, backoff, finished, failed, stopped"""
    stage: str | None = None
    """setup, warmup, step, data_wait, compile, loop, validate, checkpoint, ended"""
    since: float | None = None
    """When it entered its phase."""
    attempt: int = 0
    pid: int | None = None
    """Of the training, not of the shim."""
    epoch: int | None = None
    """Counted from 0."""
    epochs: int | None = None
    step: int | None = None
    """Made by the training, earlier attempts included; null where that is not known."""
    attempt_steps: int | None = None
    """Made by this attempt."""
    steps_total: int | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    """Of this job's data in the last minute, by the shapes of its batches; all ranks together."""
    tokens_per_s: float | None = None
    """Likewise, padding included; null where the data is not known to be text."""
    last_step_at: float | None = None
    eta: float | None = None
    """When it will have finished, if it goes on like this: validations and checkpoints are counted in."""
    eta_early: float | None = None
    """At the pace of the fastest tenth of this attempt."""
    eta_late: float | None = None
    epoch_s: float | None = None
    """One epoch, with what lies between it and the next."""
    steps_expected: int | None = None
    """What should be made by now at the owner's pace."""
    loss: float | None = None
    restarts: int = 0
    """Ever made that counted against the budget."""
    reason: str | None = None
    hooked: bool = False
    """Whether the agent inside the training reports."""
    unkillable: bool = False
    flags: list[str] = field(default_factory=list)
    """Messages of the red flags that stand now."""
    shadows: int = 0
    """Flags of rules in shadow ever recorded about the job; `history --shadow` lists them."""
    watched: list[WatchedStatus] = field(default_factory=list)
    """What is watched now, the nearest to its limit first."""
    gpus: list[str] = field(default_factory=list)
    """PCI addresses; empty: every GPU."""
    expectations: list[Criterion] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    """Remedies in force, each with its cause and what the agent set."""
    standby: str | None = None
    """State of the standby for the next attempt: importing, ready."""
    degraded: list[str] = field(default_factory=list)
    """The parts of its supervision that failed or do not answer; everything else goes on."""


def measured_body(reading: type) -> type[Struct]:
    """Return a body with a field for each that a reading declares as part of the API."""
    fields = [(measure.name, measure.type | None, None) for measure in measures_of(reading).values() if measure.api]
    return defstruct(f"_{reading.__name__}", fields, frozen=True, kw_only=True, module=__name__)


if TYPE_CHECKING:  # which fields there are is known at run time only
    _GpuMeasures: TypeAlias = Struct
    _HostMeasures: TypeAlias = Struct
else:
    _GpuMeasures, _HostMeasures = measured_body(GpuReading), measured_body(HostReading)


class GpuStatus(_GpuMeasures, frozen=True, kw_only=True):
    """The newest reading of one GPU, all sources together, with every field that `GpuReading` declares for the API."""

    gpu: str
    name: str | None = None
    source: str | None = None
    at: float | None = None
    gfx_version: str | None = None
    memory_used_bytes: int | None = None
    """VRAM, on an APU with GTT."""
    memory_total_bytes: int | None = None


class DiskStatus(Struct, frozen=True, kw_only=True):
    """Space on one file system."""

    path: str
    free_bytes: int
    total_bytes: int


class HostStatus(_HostMeasures, frozen=True, kw_only=True):
    """The newest reading of the machine, with every field that `HostReading` declares for the API."""

    at: float | None = None
    disks: list[DiskStatus] = field(default_factory=list)


class Status(Struct, frozen=True, kw_only=True):
    """Everything at a glance."""

    schema: int = SCHEMA
    daemon: DaemonStatus
    jobs: list[JobStatus] = field(default_factory=list)
    gpus: list[GpuStatus] = field(default_factory=list)
    host: HostStatus | None = None


# --- GET /v1/incidents, /v1/incidents/ID ----------------------------------------------------------------------------


class ResumedFrom(Struct, frozen=True, kw_only=True):
    """The checkpoint that the next attempt was started from."""

    path: str
    epoch: int | None = None
    step: int | None = None
    source: str | None = None
    """Of a generation: the file that it was captured from."""


class IncidentEntry(Struct, frozen=True, kw_only=True):
    """One incident, from the flag to the first new step."""

    id: str
    job: str
    attempt: int
    at: float
    rule: str
    severity: str
    fault: str | None = None
    message: str
    decision: str
    """stop, kill, retry, give_up"""
    outcome: str
    """open, resumed, restarted, checkpoint_ignored, gave_up, stopped, overtaken"""
    confirmed: bool | None = None
    """Of resumed: whether its steps or losses show that it did go on from there; null before its first step."""
    last_step: int | None = None
    """As the training counts it; null where only the attempt's own count is known."""
    resumed_from: ResumedFrom | None = None
    loads_itself: bool = False
    """Of restarted: whether no checkpoint was given to the training, and it has to load its own."""
    went_on_step: int | None = None
    """Of restarted: the step that it went on from, 0 for the beginning; null where its steps do not show it."""
    resumed_at: float | None = None
    lost_steps: int | None = None
    downtime_s: float | None = None
    evidence: str | None = None
    """Folder."""
    reason: str | None = None
    """Why it was given up."""
    diagnosis: Diagnosis | None = None
    cause: str | None = None
    """What the remedy was chosen by."""
    remedy: str | None = None
    """What the next attempt was given."""
    remedy_why: str | None = None
    finding: TriageFinding | None = None
    """What a triage before the retry said."""


class TriageFinding(Struct, frozen=True, kw_only=True):
    """The cause of non-finite numbers, as replays of the step show it."""

    verdict: str
    """data, numerics, hardware, data_or_numerics, unknown"""
    words: str
    files: list[str] = field(default_factory=list)
    """What to look at first."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What was ruled out, the likely causes and the advice for a flag."""

    ruled_out: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    """The likeliest first."""
    advice: list[str] = field(default_factory=list)


class ShadowEntry(Struct, frozen=True, kw_only=True):
    """A flag on which a rule in shadow would have acted."""

    job: str
    attempt: int
    at: float
    rule: str
    message: str
    fault: str | None = None
    diagnosis: Diagnosis | None = None


class Shadows(Struct, frozen=True, kw_only=True):
    """Flags of rules in shadow, newest first."""

    schema: int = SCHEMA
    flags: list[ShadowEntry] = field(default_factory=list)


class OutageEntry(Struct, frozen=True, kw_only=True):
    """A time in which the daemon did not run while an attempt of a job lived."""

    job: str
    attempt: int
    at: float
    """When the daemon was last known to run."""
    until: float
    """When it ran again."""


class History(Struct, frozen=True, kw_only=True):
    """Incidents and outages of the daemon, each newest first."""

    schema: int = SCHEMA
    incidents: list[IncidentEntry] = field(default_factory=list)
    outages: list[OutageEntry] = field(default_factory=list)


class StoryLine(Struct, frozen=True, kw_only=True):
    """One thing that happened around an incident: a flag, a decision, an event."""

    at: float
    what: str
    detail: str = ""


class IncidentDetail(Struct, frozen=True, kw_only=True):
    """One incident with what led to it and what came of it, oldest first."""

    schema: int = SCHEMA
    incident: IncidentEntry
    story: list[StoryLine] = field(default_factory=list)


class EvidenceFile(Struct, frozen=True, kw_only=True):
    """One file of an incident's evidence."""

    name: str
    """Below the evidence's folder."""
    size_bytes: int


class EvidenceFiles(Struct, frozen=True, kw_only=True):
    """The evidence that was collected for an incident."""

    schema: int = SCHEMA
    folder: str
    files: list[EvidenceFile] = field(default_factory=list)


class EvidencePart(Struct, frozen=True, kw_only=True):
    """The end of one file of the evidence."""

    schema: int = SCHEMA
    name: str
    size_bytes: int
    """Of the complete file."""
    content: bytes
    """In JSON as Base64."""


# --- the rest -----------------------------------------------------------------------------------------------------


class CheckpointEntry(Struct, frozen=True, kw_only=True):
    """One saved state."""

    path: str
    saved_at: float
    size_bytes: int
    epoch: int | None = None
    step: int | None = None
    verdict: str | None = None
    """proven, rejected, or null where it was not checked yet."""
    reason: str | None = None
    kind: str = "checkpoint"
    """checkpoint, or snapshot: saved by the agent in mid-epoch."""
    source: str | None = None
    """Of a generation: the file that it was captured from; null for the training's own file."""
    kept_by: str | None = None
    """Of a generation: the limits that keep it; empty once it was pruned."""
    fitness: float | None = None


class Checkpoints(Struct, frozen=True, kw_only=True):
    """The checkpoints of a job, the one with the most training first."""

    schema: int = SCHEMA
    job: str
    checkpoints: list[CheckpointEntry] = field(default_factory=list)


class Spent(Struct, frozen=True, kw_only=True):
    """Where the time between two moments went."""

    began: float | None = None
    ended: float | None = None
    ettr: float | None = None
    """Effective training time ratio, 0 to 1; null where no step was recorded."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By class: setup, compile, train, data_wait, validate, checkpoint, lost, down, waiting, unseen."""
    cost_s: dict[str, float] = field(default_factory=dict)
    """By cause: work lost, time down and the set-up after it."""
    faults: dict[str, int] = field(default_factory=dict)
    """By cause, how often."""


class JobAccount(Struct, frozen=True, kw_only=True):
    """How the time of a job was spent."""

    schema: int = SCHEMA
    job: str
    lifetime: Spent
    last_hour: Spent
    outages: int = 0
    """How often the daemon did not run while an attempt lived; what the training did then is in the seconds above."""
    outages_s: float = 0.0


class JobDisk(Struct, frozen=True, kw_only=True):
    """What the folder of one job takes on the disk."""

    job: str
    configured: bool
    """False: no longer; `supervisorctl forget` removes what is left of it."""
    attempts: int
    """Folders of attempts."""
    attempts_bytes: int
    """Their output, flight recorders and logs; evidence not counted."""
    evidence_bytes: int
    snapshots_bytes: int
    generations_bytes: int


class DiskUse(Struct, frozen=True, kw_only=True):
    """What the state directory takes on the disk, the largest job first."""

    schema: int = SCHEMA
    state_dir: str
    jobs: list[JobDisk] = field(default_factory=list)
    code_bytes: int
    """Copies of the program that running trainings were started with."""
    database_bytes: int


class BeforeAfterRate(Struct, frozen=True, kw_only=True):
    """A rate with the owner's settings, and with what was adopted; null where nothing was confirmed."""

    before: float | None = None
    after: float | None = None


class BeforeAfterName(Struct, frozen=True, kw_only=True):
    """A bottleneck before and after: data-bound, host-bound, GPU-bound, ..., mixed; null: none that is measured."""

    before: str | None = None
    after: str | None = None


class KnobAdopted(Struct, frozen=True, kw_only=True):
    """A setting that was proven: by what factor, less one, it is faster, with bounds."""

    knob: str
    value: Any
    gain: float
    low: float
    high: float
    remark: str = ""
    """What could not be compared; empty: nothing."""


class KnobRefused(Struct, frozen=True, kw_only=True):
    """A setting that is not adopted, and why; `value` is null where it was not tried."""

    knob: str
    value: Any
    why: str


class TuneReport(Struct, frozen=True, kw_only=True):
    """Answer to GET and POST /v1/jobs/JOB/tune: the tune under way, or the last one."""

    schema: int = SCHEMA
    job: str
    state: str
    """diagnosing, trying, ended"""
    trying: str = ""
    pairs: int = 0
    """Of blocks, of what is being tried."""
    steps: int = 0
    """Counted so far."""
    made: int = 0
    """So far, with those that no block counts."""
    problem: str | None = None
    """Why it ended before its time."""
    unit: str = "samples"
    """What the rates count: samples, or steps where the samples are not known."""
    samples_per_s: BeforeAfterRate = BeforeAfterRate()
    adopted: list[KnobAdopted] = field(default_factory=list)
    refused: list[KnobRefused] = field(default_factory=list)
    left: list[KnobRefused] = field(default_factory=list)
    """Not tried."""
    bottleneck: BeforeAfterName = BeforeAfterName()
    why: str = ""
    """What the first bottleneck's verdict rests on."""


def encode(value: Struct) -> dict[str, Any]:
    """Return a body as plain values, as they are kept in a file."""
    found = msgspec.to_builtins(value)
    assert isinstance(found, dict)
    return found


def decode_tune_report(value: object) -> TuneReport | None:
    """Return a report that was kept, None for anything else."""
    try:
        return msgspec.convert(value, TuneReport)
    except msgspec.ValidationError:
        return None


class Forgotten(Struct, frozen=True, kw_only=True):
    """Answer to POST /v1/jobs/JOB/forget."""

    schema: int = SCHEMA
    job: str
    rows: int
    """Deleted from the record."""
    folder_removed: bool
    """False: a part of its folder could not be removed."""


class RemedyInForce(Struct, frozen=True, kw_only=True):
    """A remedy that every attempt of a job gets."""

    job: str
    remedy: str
    cause: str
    attempt: int
    """The first that had it."""
    what: str
    """What it does, in words."""
    applied: str | None = None
    """What the agent reported that it set; null where nothing was reported."""


class RemedyTried(Struct, frozen=True, kw_only=True):
    """A remedy that a job was given, from `attempt` on."""

    job: str
    attempt: int
    at: float
    cause: str
    remedy: str
    step: int | None = None
    """The step of the fault."""
    outcome: str
    """open, helped, failed, unclear, skipped"""
    settled_at: float | None = None
    reason: str | None = None


class RemedyLearned(Struct, frozen=True, kw_only=True):
    """How often a remedy helped and failed on this machine against one cause."""

    cause: str
    remedy: str
    helped: int
    failed: int


class RemedyReport(Struct, frozen=True, kw_only=True):
    """Remedies: in force, tried (newest first), and what this machine has learned of them."""

    schema: int = SCHEMA
    in_force: list[RemedyInForce] = field(default_factory=list)
    tried: list[RemedyTried] = field(default_factory=list)
    learned: list[RemedyLearned] = field(default_factory=list)


class Output(Struct, frozen=True, kw_only=True):
    """A part of the folded output of a job's newest attempt."""

    schema: int = SCHEMA
    job: str
    attempt: int
    text: str
    next_offset: int
    """What to ask for next; belongs to this attempt alone."""


Level = Literal["ok", "warn", "fail"]


class DoctorLine(Struct, frozen=True, kw_only=True):
    """One check."""

    name: str
    level: Level
    found: str
    remedy: str | None = None


class Doctor(Struct, frozen=True, kw_only=True):
    """The results of the checks that the daemon itself runs."""

    schema: int = SCHEMA
    lines: list[DoctorLine] = field(default_factory=list)


class Accepted(Struct, frozen=True, kw_only=True):
    """The request was accepted; the status shows its progress."""

    schema: int = SCHEMA
    job: str
    ask: str
    by: str


class ReloadReport(Struct, frozen=True, kw_only=True):
    """What a changed configuration came to, or would come to in a dry run; with problems nothing of it is applied."""

    schema: int = SCHEMA
    applied: list[str] = field(default_factory=list)
    needs_restart: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class ErrorBody(Struct, frozen=True, kw_only=True):
    """Why the request failed."""

    code: str
    message: str
    remedy: str = ""


class Failure(Struct, frozen=True, kw_only=True):
    """Body of every failure."""

    schema: int = SCHEMA
    error: ErrorBody


# --- GET /v1/alerts -----------------------------------------------------------------------------------------------


class AlertReceiver(Struct, frozen=True, kw_only=True):
    """One receiver of alerts, [alerts.NAME]."""

    name: str
    state: Literal["ok", "failing", "unusable"]
    """failing: its newest alerts were not delivered; unusable: its address or secret cannot be read."""
    min_severity: str | None = None
    waiting: int = 0
    delivered: int = 0
    given_up: int = 0
    last_delivered_at: float | None = None
    problem: str | None = None
    warning: str | None = None
    """Why it does not work as configured: its time zone is not known on this machine."""
    kind: str = "webhook"
    """Its channel."""
    muted_until: float | None = None
    """Unix seconds; null where it is not muted."""
    quiet: bool = False
    """Whether it has quiet hours now."""


class AlertEntry(Struct, frozen=True, kw_only=True):
    """One alert to one receiver."""

    id: str
    receiver: str
    type: str
    job: str | None = None
    state: str
    """waiting, delivered or failed (given up)"""
    tries: int = 0
    queued_at: float
    tried_at: float | None = None
    next_at: float | None = None
    error: str | None = None


class AlertsReport(Struct, frozen=True, kw_only=True):
    """The receivers, and the newest alerts."""

    schema: int = SCHEMA
    receivers: list[AlertReceiver] = field(default_factory=list)
    alerts: list[AlertEntry] = field(default_factory=list)


class AlertQueued(Struct, frozen=True, kw_only=True):
    """Answer to POST /v1/alerts/NAME/test."""

    schema: int = SCHEMA
    id: str
    receiver: str


class AlertsMuted(Struct, frozen=True, kw_only=True):
    """Answer to POST /v1/alerts/mute."""

    schema: int = SCHEMA
    receivers: list[str]
    until: float | None
    """Unix seconds; null: not muted any more."""


class AlertAcknowledged(Struct, frozen=True, kw_only=True):
    """Answer to POST /v1/alerts/ack."""

    schema: int = SCHEMA
    job: str
    incident: str | None
    """The incident that it was given up in; null where there was none."""


Answer = (
    AlertsReport
    | AlertAcknowledged
    | AlertsMuted
    | AlertQueued
    | Status
    | History
    | Shadows
    | IncidentDetail
    | EvidenceFiles
    | EvidencePart
    | Checkpoints
    | JobAccount
    | DiskUse
    | Forgotten
    | TuneReport
    | RemedyReport
    | Output
    | Doctor
    | Accepted
    | ReloadReport
    | Failure
)
