"""Bodies on the control socket, one class each; times are Unix seconds, unknown is null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, defstruct, field

from supervisor.core.foreign_values import BYTES_MAX
from supervisor.core.measured import measures_of
from supervisor.core.memory.kept import BATCH_MAX
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
    """By which it has ended; more are made where steps are fast."""
    may: list[Literal["batch", "precision", "restart"]] = field(default_factory=list)
    """What the owner permits beyond changes that leave the training what it is."""
    stop: bool = False
    """End the tune under way instead."""
    undo: bool = False
    """Put the owner's settings back instead, also for the next attempts."""


class EstimateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/jobs/JOB/estimate: what was estimated of the command as it is configured, on its GPU."""

    command_sha256: Annotated[str, Meta(min_length=64, max_length=64)]
    """Of its words, as `core.memory.kept.digest_command` has it."""
    torch: Annotated[str, Meta(min_length=1, max_length=64)]
    card_bytes: Annotated[int, Meta(ge=1, le=BYTES_MAX)]
    configured: Annotated[int, Meta(ge=1, le=BATCH_MAX)]
    """Samples in a micro-batch by its loader."""
    largest: Annotated[int, Meta(ge=0, le=BATCH_MAX)]
    """The largest micro-batch that fits; 0: none does."""
    ran: bool
    """Whether that one was seen to run."""


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
    not_configured: list[str] = field(default_factory=list)
    """Jobs that were left out of the configuration of its start, and whose trainings run on unsupervised."""


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
    """Whether the rule is in shadow: it records what it would have done, and never acts."""
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


# --- the rest -----------------------------------------------------------------------------------------------------


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


class EstimateKept(Struct, frozen=True, kw_only=True):
    """Answer to POST /v1/jobs/JOB/estimate."""

    schema: int = SCHEMA
    job: str


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
