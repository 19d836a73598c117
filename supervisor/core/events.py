"""Every fact that can enter the inbox: an event is what happened, never what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from supervisor.core.checkpoints.checkpoint import Checkpoint, ResumePoint
from supervisor.core.findings import KernelFinding, OutputFinding
from supervisor.core.flags import SHADOW, Act
from supervisor.core.moments import Moment
from supervisor.core.peers import PeerStage, PeerWait
from supervisor.core.readings import ExitStatus, GpuReading, HostReading, ProcessReading, Stage, StepRecord
from supervisor.core.triage.finding import Finding
from supervisor.core.tuning.start_order import StartOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time went on."""

    at: Moment


# --- what people and the system ask -------------------------------------------------------------------------------


class Ask(Enum):
    """What a person, or systemd on their behalf, can ask of a job."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    SHUT_DOWN = "shut_down"
    """The daemon ends: save and end the training, but go on with it when the daemon is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """A user requested something of a job."""

    at: Moment
    job: str
    ask: Ask
    by: str
    """Who, for the record: `uid 1000`, `systemd`."""
    fresh: bool = False
    """With START: from the beginning, whatever was saved."""


class StartAsk(Enum):
    """What a tune can ask of the starts of a job."""

    TRY = "try"
    """Restart the attempt as ordered, to be measured."""
    END = "end"
    """The tune is over: what it had lent ends."""
    KEEP = "keep"
    """Use what was proven, from the next start on; an END after that makes it."""
    FORGET = "forget"
    """Use no longer what was proven before, from the next start on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAsked:
    """A tune asked something of the starts of a job; of an attempt that is not the present one it is too late."""

    at: Moment
    job: str
    attempt: int
    ask: StartAsk
    order: StartOrder | None = None
    """With TRY, and with KEEP."""


# --- the life of an attempt's processes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The shim runs and has started the training."""

    at: Moment
    job: str
    attempt: int
    shim_pid: int
    training_pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailed:
    """No shim came up; nothing of this attempt runs."""

    at: Moment
    job: str
    attempt: int
    error: str
    shortage: str | None = None
    """What the machine had none left of, where that was the reason: no fault of the job's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The shim is gone and so is every process of the attempt."""

    at: Moment
    job: str
    attempt: int
    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost:
    """The attempt ended without an exit record: reboot, power cut, or a shim that was killed."""

    at: Moment
    job: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled:
    """The training was asked to end: its time to do so runs from now."""

    at: Moment
    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The stopped processes of the attempt were sent SIGCONT."""

    at: Moment
    job: str
    attempt: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTaken:
    """The evidence for an incident lies in `folder`."""

    at: Moment
    job: str
    attempt: int
    folder: str
    took_s: float
    missing: tuple[str, ...] = ()
    """What could not be had in time, each with its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResortEnded:
    """The command of a last resort ended, or was given up."""

    at: Moment
    job: str
    attempt: int
    kind: str
    done: bool
    """Whether it ended with status 0."""
    output: str
    """What it printed last, or why it was not done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageEnded:
    """The replays of a bad step are over and nothing of them runs any more."""

    at: Moment
    job: str
    attempt: int
    finding: Finding
    began_at: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePointFound:
    """The checkpoints were looked through after an attempt ended."""

    at: Moment
    job: str
    attempt: int
    point: ResumePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSeen:
    """A checkpoint was saved, or its verdict became known."""

    at: Moment
    job: str
    attempt: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotKept:
    """No generation was kept of what a training saved; the training's own file is all there is."""

    at: Moment
    job: str
    attempt: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsClosed:
    """What of a job's checkpoint patterns finds nothing by now; empty: all can be looked at, and none is a folder."""

    at: Moment
    job: str
    attempt: int
    closed: tuple[str, ...]
    """Each with what to do about it."""
    folders: tuple[str, ...] = ()
    """Patterns for files of which the last name is that of a folder, each with what to write in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingFound:
    """An attempt from the beginning found checkpoints where it will save, which it did not prove."""

    at: Moment
    job: str
    attempt: int
    count: int
    kept: int
    """Copies that were made of them before it was launched."""
    folder: str
    left_out: tuple[str, ...] = ()
    """Of which there is no copy, each with the reason."""


# --- reports of the training --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsMade:
    """Steps read from the flight recorder, oldest first."""

    at: Moment
    job: str
    attempt: int
    records: tuple[StepRecord, ...]
    rank: int = 0
    cursor: int = 0
    """Records read of this recorder so far; kept, so that a new daemon reads on without a gap or a double."""
    lost: int = 0
    """Records overwritten before they were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEntered:
    """The training entered a stage."""

    at: Moment
    job: str
    attempt: int
    stage: Stage
    stages_complete: bool = False
    """Whether the agent reports every stage, so that a long step is no unreported stage."""

    @property
    def ends_training(self) -> bool:
        """Whether this is the end of the whole training; elsewhere it may be that of one of several loops."""
        return self.stage is Stage.ENDED and self.stages_complete


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderIdle:
    """The recorder was read to its end and nothing new was in it: up to now there is no further step."""

    at: Moment
    job: str
    attempt: int


class AgentEvent(Enum):
    """The events of `agent.jsonl`."""

    ALIVE = "alive"
    CLAIMED = "claimed"
    PLAN = "plan"
    LOOPS = "loops"
    CHECKPOINT_SAVED = "checkpoint_saved"
    EXCEPTION = "exception"
    PATCHED = "patched"
    RESUMED = "resumed"
    COUNTING = "counting"
    FILE_SAVED = "file_saved"
    TRAIN_END = "train_end"
    HOOK_FAILED = "hook_failed"
    CONV2D_FAILED = "conv2d_failed"
    SAVE_FAILED = "save_failed"
    SNAPSHOTS = "snapshots"
    ALLOCATOR = "allocator"
    WORKERS = "workers"
    TRAINS = "trains"
    PROGRAM_ENDS = "program_ends"
    DEVICE = "device"
    PRECISION = "precision"
    EPOCH_END = "epoch_end"
    REMEDY_APPLIED = "remedy_applied"
    SETTING_ASKED = "setting_asked"
    TUNING = "tuning"
    STOCK = "stock"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReported:
    """A rare event of the training, reported by the agent inside it."""

    at: Moment
    job: str
    attempt: int
    agent_event: AgentEvent
    facts: dict[str, object]
    """As in the file; fields are described in `core/attempt_files.py`."""
    offset: int = 0
    """Bytes of agent.jsonl read up to and with this line."""
    pid: int | None = None
    """The process that reported it."""
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSeen:
    """New lines of the training's output, folded, with what they mean."""

    at: Moment
    job: str
    attempt: int
    new_bytes: int
    last_line: str
    findings: tuple[OutputFinding, ...] = ()
    progress_step: int | None = None
    """The step that the newest progress bar shows; None where there is none."""
    bar_steps: int | None = None
    """The steps of that bar; None where its line names an epoch too, and is no download or preparation."""
    offset: int = 0
    """Bytes of output.log read so far; kept, so that a new daemon reads on."""


_READING = "reading "


def reading_place(part: str) -> str:
    """Return the place of `SupervisionChanged` for the reading of one of an attempt's files."""
    return f"{_READING}{part}"


def part_read(place: str) -> str | None:
    """Return which of an attempt's files is read at a place of `SupervisionChanged`; None for any other place."""
    return place.removeprefix(_READING) if place.startswith(_READING) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionChanged:
    """A part of a job's supervision failed, or works again; a part that failed is left out, the others continue."""

    at: Moment
    job: str
    attempt: int
    place: str
    """What failed: `rule stall`, `history`, `reading output`, `checkpoints`."""
    error: str
    """The exception, and where in the code it was raised."""
    kind: str | None = None
    """The kind of the event that it failed on, which is skipped from now on; None where there was none."""
    offset: int | None = None
    """Bytes of that event's file read up to and with it, where it has one."""
    recovered: bool = False
    """Whether the part works again."""
    persistent: bool = False
    """Whether it belongs to no attempt and lasts until repaired: a file system that does not answer."""


# --- readings of sensors ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusRead:
    """One round of readings over all GPUs."""

    at: Moment
    readings: tuple[GpuReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """One reading of the machine."""

    at: Moment
    reading: HostReading


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesRead:
    """One reading of an attempt's process tree."""

    at: Moment
    job: str
    attempt: int
    reading: ProcessReading


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWaitsSeen:
    """Which other nodes of the training wait for a file system, by the newest word of its leader."""

    at: Moment
    job: str
    attempt: int
    waits: tuple[PeerWait, ...]
    """Empty: none waits any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStageSeen:
    """The stage that rank 0 of the training is in on another node, by the newest word of its leader."""

    at: Moment
    job: str
    attempt: int
    stage: PeerStage


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReported:
    """Findings in the kernel log, and how far it was read."""

    at: Moment
    findings: tuple[KernelFinding, ...]
    sequence: int | None = None
    """Of the last record of /dev/kmsg; None where it was not that which was read."""
    cursor: str | None = None
    """Of the last entry of the journal; None where it was not that which was read."""
    lost_lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChanged:
    """A source began to answer or ceased to."""

    at: Moment
    source: str
    answering: bool
    detail: str


# --- the daemon itself --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTried:
    """A delivery attempt of an alert has ended."""

    at: Moment
    alert: str
    delivered: bool
    error: str | None
    retry_after_s: float | None = None
    """What the receiver asked for; None where it named nothing."""
    final: bool = False
    """Whether trying again makes no sense (the receiver is gone for good)."""
    message: str | None = None
    """The message that was made at the service, as its channel names it; None where it cannot be edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChanged:
    """What a rule of a job may do was changed by a new configuration."""

    at: Moment
    job: str
    rule: str
    before: Act
    after: Act

    @property
    def promoted(self) -> bool:
        """Whether it was in shadow and acts from now on."""
        return self.before == SHADOW and self.after is True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStepped:
    """The wall clock jumped against the monotonic one."""

    at: Moment
    by_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonAway:
    """The daemon did not run for so long up to `at`: its process was stopped, or the machine was suspended."""

    at: Moment
    away_s: float


AttemptEvent: TypeAlias = (
    Launched
    | LaunchFailed
    | Exited
    | HostLost
    | Signalled
    | Continued
    | EvidenceTaken
    | StartAsked
    | ResumePointFound
    | ResortEnded
    | TriageEnded
    | CheckpointSeen
    | CheckpointNotKept
    | CheckpointsClosed
    | ExistingFound
    | StepsMade
    | StageEntered
    | RecorderIdle
    | AgentReported
    | OutputSeen
    | ProcessesRead
    | PeerWaitsSeen
    | PeerStageSeen
    | SupervisionChanged
)
MachineEvent: TypeAlias = (
    Tick | GpusRead | HostRead | KernelReported | SourceChanged | RuleChanged | ClockStepped | DaemonAway | AlertTried
)
Event: TypeAlias = UserRequest | AttemptEvent | MachineEvent
