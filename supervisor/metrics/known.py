"""The facts that metrics are made of, as the daemon knows them at one moment; unknown is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, HostReading
from supervisor.core.stats.histogram import HistogramKnown


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingKnown:
    """One training; counts are of the present daemon's life."""

    name: str
    phase: str
    attempt: int
    hooked_conv2d: bool | None = None
    """Whether the agent replaced its Conv2d; None while nothing runs."""
    unit: str | None = None
    """The systemd unit of its attempt; None where none runs, or it runs in no unit of its own."""
    device: str | None = None
    """In the framework's own words."""
    epoch: int | None = None
    """Counted from 0."""
    epochs: int | None = None
    loss: float | None = None
    lr: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    data_wait_ratio: float | None = None
    last_step_unix_s: float | None = None
    proven_unix_s: float | None = None
    """When the newest proven checkpoint was saved."""
    end_unix_s: float | None = None
    """When it is expected to end."""
    rss_bytes: int | None = None
    cpu_ratio: float | None = None
    """Processors in use: 1.0 is one of them."""
    incident_open: bool = False
    steps: int = 0
    steps_redone: int = 0
    non_finite_steps: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time by what it was spent on."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """By cause."""
    flags: Mapping[str, int] = field(default_factory=dict)
    """By rule."""
    snapshots: HistogramKnown | None = None
    """How long they took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverKnown:
    """Alerts of one receiver, as recorded."""

    name: str
    waiting: int = 0
    sent: int = 0
    retrying: int = 0
    """Alerts that wait after a delivery that failed."""
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKnown:
    """One source of GPU readings that was queried."""

    name: str
    answering: bool
    last_success_unix_s: float | None = None
    """When it gave the newest reading that is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All of it. A reading older than `stale_after_s` is not exposed."""

    now: Moment
    stale_after_s: float
    version: str
    python: str
    sqlite: str
    started_unix_s: float
    loop_lag_s: float | None = None
    """How long the deciding thread took to begin its answer."""
    database_bytes: int | None = None
    database_problem: bool = False
    database_writes: HistogramKnown | None = None
    """How long commits took."""
    trainings: tuple[TrainingKnown, ...] = ()
    gpus: tuple[GpuReading, ...] = ()
    host: HostReading | None = None
    sources: tuple[SourceKnown, ...] = ()
    receivers: tuple[ReceiverKnown, ...] = ()
