"""What the archive returns besides facts of the core: a frozen dataclass for each table, with its columns as fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.incident import Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt, from its launch to its end."""

    job: str
    number: int
    launched_unix_s: float | None
    ended_unix_s: float | None
    folder: str | None
    resume_from: str | None
    resume_epoch: int | None
    resume_step: int | None
    reason: str | None
    exit_code: int | None
    exit_signal: int | None
    error: str | None
    host_lost: str | None
    max_rss_bytes: int | None
    last_step: int | None
    last_epoch: int | None
    lost_records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagRecord:
    """One raised flag."""

    job: str
    attempt: int
    at_unix_s: float
    rule: str
    severity: str
    subject: str | None
    fault: str | None
    message: str
    since_unix_s: float | None
    since_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision; `body` is the decision as JSON."""

    job: str
    attempt: int
    at_unix_s: float
    kind: str
    reason: str | None
    rule: str | None
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentStory:
    """An incident with the flags and decisions of its attempt, and the launch that came after it."""

    incident: Incident
    flags: tuple[FlagRecord, ...]
    decisions: tuple[DecisionRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyRecord:
    """A remedy that a job was given, from `attempt` on, and its outcome."""

    job: str
    attempt: int
    at_unix_s: float
    cause: str
    remedy: str
    step: int | None
    reason: str | None
    outcome: str
    settled_unix_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCheckpoint:
    """A checkpoint and when it became known."""

    checkpoint: Checkpoint
    attempt: int
    first_seen_unix_s: float
    judged_unix_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBucket:
    """The steps of one period; losses and norms are of finite values only, `non_finite` counts the others."""

    attempt: int
    bucket_unix_s: int
    steps: int
    step_first: int
    step_last: int
    first_unix_s: float
    last_unix_s: float
    epoch: int | None
    loss_min: float | None
    loss_mean: float | None
    loss_max: float | None
    loss_last: float | None
    lr_last: float | None
    grad_norm_max: float | None
    data_wait_mean_s: float | None
    gpu_memory_max_bytes: int | None
    steps_per_s: float | None
    non_finite: int
    samples: int | None = None
    """Drawn for these steps by rank 0; of steps that report none, nothing is added."""
    tokens: int | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second, as the steps of the bucket were made."""
        return self._per_s(self.samples)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second, padding included."""
        return self._per_s(self.tokens)

    def _per_s(self, count: int | None) -> float | None:
        return None if count is None or self.steps_per_s is None else count / self.steps * self.steps_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord:
    """The properties of a GPU that do not change."""

    gpu: str
    name: str | None
    unique_id: str | None
    gfx_version: str | None
    vram_total_bytes: int | None
    gtt_total_bytes: int | None
    seen_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One reading of one GPU by one source."""

    at_unix_s: float
    gpu: str
    source: str
    values: Mapping[str, Any]
    """What `GpuReading` declares as recorded, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One reading of the host."""

    at_unix_s: float
    values: Mapping[str, Any]
    """What `HostReading` declares as recorded, by name."""
    disks: Sequence[Mapping[str, object]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One reading of an attempt's process tree."""

    at_unix_s: float
    job: str
    attempt: int
    processes: int
    rss_bytes: int | None
    cpu_percent: float | None
    uninterruptible: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One rare event; `body` is the event as JSON."""

    id: int
    at_unix_s: float
    kind: str
    job: str | None
    attempt: int | None
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCount:
    """How many alerts of a receiver are in one state, and when and with which error the newest of them was tried."""

    sink: str
    state: str
    count: int
    tried: int
    """How many of them were tried at least once; others are held, or were queued a moment ago."""
    tried_unix_s: float | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecord:
    """One alert and the state of its delivery; `body` is what was or will be sent."""

    id: str
    sink: str
    type: str
    job: str | None
    body: str
    queued_unix_s: float
    state: str
    tries: int
    next_unix_s: float | None
    tried_unix_s: float | None
    error: str | None
