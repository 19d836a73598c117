"""Every decision that can be made about a job, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.flags import RedFlag
from supervisor.core.moments import Moment
from supervisor.core.remedies.gpu_memory import GpuMemory
from supervisor.core.triage.finding import Finding, LookedFor
from supervisor.core.tuning.start_order import StartOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start an attempt."""

    at: Moment
    job: str
    attempt: int
    resume_from: Checkpoint | None
    reason: str
    memory: tuple[GpuMemory, ...] = ()
    """Memory in use on its GPUs at the time."""
    loads_itself: bool = False
    """Whether the program has to find and load by itself what it goes on from."""
    set_aside: tuple[str, ...] = ()
    """Checkpoints newer than `resume_from` that are moved out of the program's own search first."""
    stand_in: Checkpoint | None = None
    """What the program then finds as its newest, where those are damaged."""
    together: tuple[Checkpoint, ...] = ()
    """Generations of the other files of that save, each put into its place as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Report a flag to the owner; the attempt goes on."""

    at: Moment
    job: str
    attempt: int
    flag: RedFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Record what a rule in shadow would have acted on; nothing is reported and the attempt goes on."""

    at: Moment
    job: str
    attempt: int
    flag: RedFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """SIGCONT to the processes of the attempt that a signal has stopped, before it is stopped for that; once."""

    at: Moment
    job: str
    attempt: int
    reason: str
    flag: RedFlag
    """What would stop the attempt, as a warning."""
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Take evidence where there is a flag, let the training save where its state is good, then SIGTERM."""

    at: Moment
    job: str
    attempt: int
    reason: str
    save: bool
    flag: RedFlag | None = None
    takes_back: str | None = None
    """The remedy to end: the reason of a planned restart without a flag."""
    order: StartOrder | None = None
    """The start that a tune asked for: the reason of a restart without a flag."""
    refused_start: str | None = None
    """Why what a tune has on trial is given up with the attempt; no incident is opened for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL to the process tree."""

    at: Moment
    job: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastResort:
    """Run a command on the machine that its owner allowed as the last remedy."""

    at: Moment
    job: str
    attempt: int
    reason: str
    kind: str
    """One of `core.resorts.RESORTS`."""
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTriage:
    """Search for the state to replay from, to find the cause of a fault before its retry is decided."""

    at: Moment
    job: str
    attempt: int
    reason: str
    flag: RedFlag
    cause: str
    step: int
    """The first bad one."""
    looked_for: LookedFor


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    """Replay the bad step, on the GPU of the attempt that ended."""

    at: Moment
    job: str
    attempt: int
    reason: str
    step: int
    looked_for: LookedFor
    resume_from: Checkpoint | None
    """Replayed from here unless there is a snapshot, from which the steps are reproduced exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Look for the resume point and start again, not before `not_before`."""

    at: Moment
    job: str
    attempt: int
    reason: str
    not_before: Moment
    flag: RedFlag | None = None
    counts: bool = True
    """Whether it spends the budget; a requested restart does not."""
    cause: str | None = None
    """The cause that the remedy is against; None where there was no fault."""
    remedy: str | None = None
    why: str | None = None
    """Why this remedy, for a person."""
    step: int | None = None
    """The step of the fault that the remedy is against."""
    gpu: str | None = None
    """PCI address that the remedy is about."""
    environment: str | None = None
    """Name of the environment that the remedy is about."""
    times: int | None = None
    """How often the factor of the remedy is applied at once; None: once."""
    refused_environment: str | None = None
    """The environment that it decides about again: no attempt is launched in it, since it failed its proof."""
    refused_start: str | None = None
    """Why what a tune had the training started with is given up; nothing is spent and no incident is opened for it."""
    ends_tune: bool = False
    """Whether it died in steps to which a tune had lent settings; nothing is spent and no incident is opened for it."""
    finding: Finding | None = None
    """The finding of a triage about the fault, or about the one before it at the same step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Leave the job failed until it is started by a user."""

    at: Moment
    job: str
    attempt: int
    reason: str
    flag: RedFlag | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The job is over: it finished, or its user stopped it."""

    at: Moment
    job: str
    attempt: int
    reason: str
    by_user: bool = False
    flag: RedFlag | None = None
    """A fault that was present all the same, so that a later start resumes from before it."""
    unconfirmed: bool = False
    """Whether what it saved last may be spoilt: its last attempt does not show that the fault before it is mended."""


Decision: TypeAlias = (
    Launch | Warn | Note | Continue | Stop | Kill | LastResort | StartTriage | Triage | Retry | GiveUp | Finish
)
