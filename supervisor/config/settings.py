"""Every setting of config.toml with its type, unit and default.

Rules bring their own settings: the fields of the classes in `supervisor.core.rules.RULES`. So do alert channels: the
class `settings_type` of each in `supervisor.alerts.channels.CHANNELS`. `config.toml` at the top of
the project shows every key of both; a test holds them together.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field

from supervisor.alerts.settings import AlertSettings
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.settings import Remedies

NonNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(gt=0, le=1_000_000_000)]
Text = Annotated[str, Meta(min_length=1)]
Words = Annotated[list[str], Meta(min_length=1)]
"""A command; its first item must not be empty."""
PathText = Annotated[str, Meta(min_length=1, extra={"path": True})]
"""An absolute path; `~` is the home directory of the user who reads the file."""
SNAPSHOT_EVERY_S = 300.0
PLACEHOLDER = "{checkpoint}"
"""Stands for the file in a command that resumes."""
NUMBER = "{number}"
"""Stands for the number in the file's name in a command that resumes, where the training finds the file by that."""
SnapshotEvery = Annotated[
    float | bool | str,
    Meta(extra={"allowed": 'seconds (0 or false: none) or "auto"'}),
]
Gpu = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,2}|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])$",
        extra={"allowed": 'a PCI address ("0000:0a:00.0") or an index ("0"), as text'},
    ),
]
MetricsAddress = Annotated[
    str,
    Meta(
        pattern=r"^((\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}|[/~].+)$",
        extra={"allowed": 'HOST:PORT ("127.0.0.1:9400") or the path of a unix socket'},
    ),
]
SourceName = Literal["sysfs", "rocm-smi", "amd-smi", "pyamdgpuinfo", "nvml", "nvidia-smi"]
"""Of a source of GPU readings, in the order of `SOURCES` (`sources/gpu/gpus.py`): preferred first."""


class SupervisorSettings(Struct, frozen=True, kw_only=True):
    """The daemon itself."""

    state_dir: PathText = "/var/lib/rocm-supervisor"
    database: Text | None = None
    """SQLAlchemy URL; None: SQLite in the state directory."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    socket: PathText | None = None
    """None: control.sock in the runtime directory that systemd made, else in the state directory."""
    launcher: Literal["auto", "direct", "held", "systemd", "systemd-user"] = "auto"
    agent: bool = True
    """Whether the trainings get the agent on their PYTHONPATH."""


class TelemetrySettings(Struct, frozen=True, kw_only=True):
    """Reading GPUs and machine."""

    interval_s: Annotated[float, Meta(ge=0.05, le=3600)] = 1.0
    sources: list[SourceName] = field(default_factory=lambda: list(get_args(SourceName)))


class KernelLogSettings(Struct, frozen=True, kw_only=True):
    """Reading the kernel log."""

    enabled: bool = True
    path: PathText = "/dev/kmsg"
    accept_user_records: bool = False
    """Whether records that a program wrote count like the kernel's own; for tests only."""


class MetricsSettings(Struct, frozen=True, kw_only=True):
    """Metrics for Prometheus, besides `GET /metrics` on the control socket."""

    textfile: PathText | None = None
    """Written every 15 s for node_exporter's textfile collector; None: not written."""
    listen: list[MetricsAddress] = field(default_factory=list)
    """Addresses at which `GET /metrics` is answered, besides the control socket."""
    hosts: list[Text] = field(default_factory=list)
    """Further names in the address of a scraper; addresses in digits and localhost need none."""


class WebSettings(Struct, frozen=True, kw_only=True):
    """The page as a service; its sockets are those of rocm-supervisor-web.socket."""

    hosts: list[Text] = field(default_factory=list)
    """Names that it answers to besides those of the loopback, as a browser's address has them."""
    tls_certificate: PathText | None = None
    tls_key: PathText | None = None


class FleetSettings(Struct, frozen=True, kw_only=True):
    """The PostgreSQL database that several nodes copy their records to."""

    database_url: Text | None = None
    """postgresql://ROLE@HOST/DATABASE, without a password; None: this machine is on its own."""
    password_file: PathText | None = None
    """None: the ways of libpq, such as ~/.pgpass."""
    node: Text | None = None
    """The name of this machine in it, unlike that of every other; None: its host name."""
    interval_s: Annotated[float, Meta(ge=1, le=3600)] = 15.0


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """How long what is recorded is kept."""

    step_metrics_days: Count = 90
    samples_days: Count = 14
    five_minutes_days: Count = 90
    hours_days: Count = 730
    incidents_days: Count = 3650
    database_limit_mb: Count = 1024
    output_limit_mb: Count = 64
    """Output kept of each attempt."""


class CheckpointSettings(Struct, frozen=True, kw_only=True):
    """Paths of checkpoints that the agent does not report, and how many generations are kept."""

    paths: list[Text] = field(default_factory=list)
    """Globs, relative to the job's cwd. A glob that ends in `/` matches folders, each a checkpoint."""
    keep: bool = True
    keep_newest: Count = 3
    keep_hourly: Annotated[int, Meta(ge=0, le=100_000)] = 12
    keep_best: Annotated[int, Meta(ge=0, le=100_000)] = 1
    limit_mb: Count = 20_000


class ResumeSettings(Struct, frozen=True, kw_only=True):
    """How the job is started from a checkpoint."""

    command: Words | None = None
    """`{checkpoint}` is replaced by the file, `{number}` by the last number in its name; None: derived from the
    command and the framework."""
    to: Text | None = None
    """Where the training looks for its checkpoint; the chosen one is put there first. Relative: to the job's cwd."""
    set_newer_aside: bool = False
    """Whether checkpoints newer than the chosen one are moved into a folder next to them, for a program that resumes
    from the newest one that it finds."""


class ExpectSettings(Struct, frozen=True, kw_only=True):
    """The owner's expectations of a job: shown as a checklist, reported on failure, without any action."""

    batches_per_s: Positive | None = None
    """While stepping."""
    checkpoint_each_epoch: bool = False
    losses_fall: bool = False
    map_rises: bool = False
    """mAP50-95, or the framework's own figure of merit."""
    max_temperature_c: Positive | None = None
    max_vram_bytes: Annotated[int, Meta(gt=0)] | None = None
    no_nan: bool = False
    deadline: datetime | None = None
    """Without an offset: local time."""


class ProfileSettings(Struct, frozen=True, kw_only=True):
    """Settings of the job on the CPU; unset values are those used on a GPU."""

    enabled: bool = False
    command: Words | None = None
    """In place of the job's own; None: the job's own, its settings below made by the agent (ultralytics)."""
    resume_command: Words | None = None
    """Replaces the job's own; `{checkpoint}` and `{number}` are replaced as there."""
    image_size: Count | None = None
    batch: Count | None = None
    epochs: Count | None = None
    workers: Annotated[int, Meta(ge=0, le=1024)] | None = None
    env: dict[str, str] = field(default_factory=dict)


class EnvironmentSettings(Struct, frozen=True, kw_only=True):
    """Another environment that the job can run in, tried as the remedy `other_environment`."""

    python: PathText | None = None
    """The interpreter that takes the place of the command's own."""
    image: Text | None = None
    """A container image that is on this machine; its `python3` takes the place of the command's own interpreter."""
    mounts: list[Text] = field(default_factory=list)
    """Folders that the container sees besides the job's own: PATH, or as podman writes them, PATH:PATH:ro."""
    devices: list[Text] = field(default_factory=list)
    """Devices that it gets besides those of AMD's GPUs, as podman names them: `nvidia.com/gpu=all`."""
    env: dict[str, str] = field(default_factory=dict)
    """Added to the job's own."""


class ProfilesSettings(Struct, frozen=True, kw_only=True):
    """The other ways to run a job."""

    cpu: ProfileSettings = field(default_factory=ProfileSettings)


class LastResortSettings(Struct, frozen=True, kw_only=True):
    """Resets of GPU and machine permitted as a last resort; a disabled one is only suggested."""

    reset_gpu: bool = False
    reset_command: list[Text] = field(default_factory=list)
    """`{gpu}` is replaced by the PCI address, `{index}` by the index; empty: the vendor tool's command."""
    reboot: bool = False
    reboot_command: Annotated[list[Text], Meta(min_length=1)] = field(default_factory=lambda: ["systemctl", "reboot"])
    limit_s: Positive = 60.0


class TuneSettings(Struct, frozen=True, kw_only=True):
    """When the job is tuned without being asked, and what such a tune may do."""

    when: Literal["asked", "once"] = "asked"
    """once: by itself, once for its command on this machine, and again where another torch or GPU is found."""
    after_s: Positive = 600.0
    """After its first step, before such a tune begins."""
    for_s: Annotated[float, Meta(ge=10, le=86_400)] = 900.0
    steps: Annotated[int, Meta(ge=100, le=1_000_000)] = 800
    may: list[Literal["batch", "precision", "restart"]] = field(default_factory=list)
    """What is tried only with permission."""


class JobSettings(Struct, frozen=True, kw_only=True):
    """One training that is to be kept alive."""

    command: Words
    cwd: PathText | None = None
    env: dict[str, str] = field(default_factory=dict)
    preset: Text | None = None
    """Variables for a GPU, of `core/remedies/presets.py`, that are added to `env` where that has none of their name."""
    autostart: bool = True
    grace_s: NonNegative = 30.0
    save_s: NonNegative = 20.0
    kill_wait_s: Positive = 10.0
    gpu_memory_release_s: NonNegative = 60.0
    """How long the memory of an attempt that ended may take to be freed before the next is launched; 0: no wait."""
    conv2d: Literal["auto", "off", "planned", "unfold", "unfold_reference"] = "auto"
    conv2d_scope: Literal["modules", "all"] = "modules"
    """What `conv2d` replaces: nn.Conv2d alone, or every convolution and BatchNorm below all of PyTorch."""
    conv2d_workspace_mb: Annotated[int, Meta(ge=1, le=1 << 20)] = 512
    """Memory that one pass of a planned convolution may use in addition to operands and result."""
    conv2d_winograd: bool = True
    """Whether float32 may be computed by Winograd's transforms: relative error up to 1e-5 in place of 1e-6."""
    conv2d_tune_s: NonNegative = 60.0
    """How long one process may time algorithms; 0: rules choose."""
    ranks_backend: Literal["script", "gloo", "host", "host-bf16"] = "script"
    """What the ranks of one machine use in place of RCCL or NCCL; host: DDP's gradients through the host's memory."""
    snapshot_every_s: SnapshotEvery = SNAPSHOT_EVERY_S
    """How often the agent saves a snapshot during an epoch; `derive.snapshot_every` converts it for the agent."""
    snapshot_replicas: PathText | None = None
    """A folder, of another machine or of all, in which each snapshot of shards is written a second time."""
    triage: Literal["manual", "auto"] = "manual"
    """Whether the daemon replays the bad step of a non-finite training before it retries."""
    triage_limit_s: Annotated[float, Meta(gt=0, le=86400)] = 900.0
    """How long all replays of one triage by itself may take together."""
    standby: bool = False
    """Whether a second interpreter, with what the training imports first, waits to be the next attempt."""
    standby_modules: list[Text] = field(default_factory=list)
    """What it imports, in this order; empty: of torch, ultralytics and their like what the attempt before imported."""
    gpus: list[Gpu] = field(default_factory=list)
    """Empty: every GPU."""
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    resume: ResumeSettings = field(default_factory=ResumeSettings)
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings by the rule's name, checked against its class; `derive.rules_of` makes the rules of them."""
    budget: Budget = field(default_factory=Budget)
    expect: ExpectSettings = field(default_factory=ExpectSettings)
    remedies: Remedies = field(default_factory=Remedies)
    environments: dict[str, EnvironmentSettings] = field(default_factory=dict)
    """By name, in the order in which they are tried."""
    profiles: ProfilesSettings = field(default_factory=ProfilesSettings)
    last_resorts: LastResortSettings = field(default_factory=LastResortSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)


class Settings(Struct, frozen=True, kw_only=True):
    """The complete configuration."""

    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    kernel_log: KernelLogSettings = field(default_factory=KernelLogSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    web: WebSettings = field(default_factory=WebSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    jobs: dict[str, JobSettings] = field(default_factory=dict)
    alerts: dict[str, AlertSettings] = field(default_factory=dict)
