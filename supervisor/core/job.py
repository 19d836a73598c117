"""A job and its phase; a move that the table lacks raises ImpossibleMove.

    pending --launch--> starting --step--> running --stop--> stopping --kill--> killing
       ^                    |                 |                  |                 |
       |                    +------ triage / retry / finish / give_up / rest ------+
       +--- wake --- finished                             backoff --launch--> starting
    stopped, failed --resume--> backoff                   (searches for a checkpoint first,
                                                          after a triage --retry--> backoff)

A phase says what may happen next, the fields of `Job` what is known there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from supervisor.core.checkpoints.checkpoint import Checkpoint, ResumePoint
from supervisor.core.checkpoints.loss_curve import Curve, Resumed
from supervisor.core.flags import RedFlag
from supervisor.core.incident import Incident
from supervisor.core.memory.shortage import Shortage
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, KernelWait
from supervisor.core.remedies.budget import Budget, Ledger
from supervisor.core.remedies.context import Ended
from supervisor.core.remedies.gpu_memory import GpuMemory
from supervisor.core.remedies.last_resorts import ResortTaken
from supervisor.core.remedies.settings import Remedies
from supervisor.core.remedies.trials import Course
from supervisor.core.scale import Place, Scale, on_training
from supervisor.core.triage.finding import Finding
from supervisor.core.triage.state import TriageState
from supervisor.core.tuning.start_order import StartOrder, TunedStart


class DesiredState(Enum):
    """What the user requested; it outranks every rule."""

    RUN = "run"
    STOP = "stop"


class Phase(Enum):
    """The phase of a job, as in status and database."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"
    BACKOFF = "backoff"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


ALIVE = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.KILLING})
"""Phases in which processes of the attempt may exist."""
ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.STOPPED})


class Move(Enum):
    """What takes a job from one phase to another."""

    LAUNCH = "launch"
    STEP = "step"
    STOP = "stop"
    KILL = "kill"
    TRIAGE = "triage"
    """The attempt is over; a triage comes before the retry."""
    RETRY = "retry"
    FINISH = "finish"
    REST = "rest"
    GIVE_UP = "give_up"
    WAKE = "wake"
    """From the beginning."""
    RESUME = "resume"
    """From a checkpoint, which has to be searched for first."""


MOVES: dict[tuple[Phase, Move], Phase] = {
    (Phase.PENDING, Move.LAUNCH): Phase.STARTING,
    (Phase.BACKOFF, Move.LAUNCH): Phase.STARTING,
    (Phase.STARTING, Move.STEP): Phase.RUNNING,
    (Phase.STARTING, Move.STOP): Phase.STOPPING,
    (Phase.RUNNING, Move.STOP): Phase.STOPPING,
    (Phase.STARTING, Move.KILL): Phase.KILLING,
    (Phase.RUNNING, Move.KILL): Phase.KILLING,
    (Phase.STOPPING, Move.KILL): Phase.KILLING,
    (Phase.PENDING, Move.GIVE_UP): Phase.FAILED,
    (Phase.BACKOFF, Move.GIVE_UP): Phase.FAILED,
    (Phase.PENDING, Move.REST): Phase.STOPPED,
    (Phase.BACKOFF, Move.REST): Phase.STOPPED,
    **{(phase, Move.TRIAGE): Phase.BACKOFF for phase in ALIVE},
    **{(phase, Move.RETRY): Phase.BACKOFF for phase in (*ALIVE, Phase.BACKOFF)},
    **{(phase, Move.FINISH): Phase.FINISHED for phase in ALIVE},
    **{(phase, Move.REST): Phase.STOPPED for phase in ALIVE},
    **{(phase, Move.GIVE_UP): Phase.FAILED for phase in ALIVE},
    **{(phase, Move.WAKE): Phase.PENDING for phase in ENDED},
    (Phase.STOPPED, Move.RESUME): Phase.BACKOFF,
    (Phase.FAILED, Move.RESUME): Phase.BACKOFF,
    (Phase.FINISHED, Move.RESUME): Phase.BACKOFF,
}


LAUNCH = "launch"
"""Name of the flag of an attempt that could not be launched."""
MACHINE_SHORTAGE = "machine_shortage"
"""Fault of a launch that failed for lack of descriptors, memory, processes or disk space on the machine."""
DEGRADED = "supervision_degraded"
"""Name of the flag of a job of which one part of the supervision failed; its subject is that part."""
UNKILLABLE = "unkillable"
"""Name of the flag of a process that SIGKILL does not end."""


class ImpossibleMove(RuntimeError):  # noqa: N818 - named for what happened, as the table's readers say it
    """A move that the table lacks: a defect of ours, never of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings of a job that decisions depend on."""

    grace_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    save_s: float = 20.0
    """How long the training may take to save before SIGTERM."""
    kill_wait_s: float = 10.0
    """From SIGKILL until a process that is still there is called unkillable."""
    gpu_memory_release_s: float = 60.0
    """From the end of an attempt, how long the release of its GPU memory may take before the next; 0: no wait."""
    resort_s: float = 60.0
    """How long the command of a last resort may take."""
    triage_s: float | None = None
    """How long the replays of a bad step may take before a retry; None: no triage is made automatically."""
    budget: Budget = field(default_factory=Budget)
    remedies: Remedies = field(default_factory=Remedies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One process trying."""

    number: int
    launched_at: Moment
    resume_from: Checkpoint | None = None
    loads_itself: bool = False
    """Whether its program has to find and load by itself what it goes on from."""
    set_aside: tuple[str, ...] = ()
    """Checkpoints newer than `resume_from` that are moved out of its program's own search before it starts."""
    stand_in: Checkpoint | None = None
    """What its program then finds as its newest, where those are damaged."""
    together: tuple[Checkpoint, ...] = ()
    """Generations of the other files of that save, each put into its place as well."""
    resume_curve: Curve | None = None
    """The losses around the step of `resume_from`, which this attempt is to continue."""
    memory_before: tuple[GpuMemory, ...] = ()
    """Memory in use on its GPUs when it was launched, as far as known."""
    shim_pid: int | None = None
    training_pid: int | None = None
    first_step_at: Moment | None = None
    last_step: int | None = None
    last_step_at: Moment | None = None
    scale: Scale | None = None
    """What its steps count; None before the first."""
    first_step: int | None = None
    """Number of its first step; None where none was made, or the first ones were never read."""
    went_on: bool | None = None
    """Whether it did go on from `resume_from`; None where not known."""
    own_file: str | None = None
    """The file that it went on from in place of `resume_from`, by its own choice; None where no such is known."""
    epoch: int | None = None
    loss: float | None = None
    train_ended: bool = False
    """Whether the training reported its end; its process may go on and may still crash."""
    patched: bool = False
    """Whether the agent replaced its Conv2d."""
    torch: str | None = None
    """Its version, as the agent reported it."""
    shortage: Shortage | None = None
    """Of its GPU's memory, by the newest exception of torch that names one."""
    exit: ExitStatus | None = None
    host_lost: str | None = None
    launch_error: str | None = None
    launch_shortage: str | None = None
    """The resource that the machine lacked when it was launched."""
    continued_at: Moment | None = None
    """When its stopped processes were sent SIGCONT: that is tried once."""
    waits: tuple[KernelWait, ...] = ()
    """Which of its threads waited in the kernel in the newest reading after SIGKILL."""
    start: TunedStart | None = None
    """What a tune has it started with."""
    order: StartOrder | None = None
    """What it was started for, where a tune measures it."""
    has_lent_block: bool = False
    """Whether a tune has lent settings to the steps that are made at present."""

    @property
    def is_lent(self) -> bool:
        """Whether it was started with what is on trial."""
        return self.order is not None and self.order.is_lent

    @property
    def over(self) -> bool:
        """Whether all of its processes have ended."""
        return self.exit is not None or self.host_lost is not None or self.launch_error is not None

    @property
    def resumed(self) -> Resumed | None:
        """Where it was resumed; None for one from the beginning, and where the step is not known."""
        if self.resume_from is None or self.resume_from.step is None:
            return None
        if self.went_on is False or self.own_file is not None or self.scale is Scale.ATTEMPT:
            return None
        return Resumed(step=self.resume_from.step, curve=self.resume_curve)

    def place_of(self, step: int) -> Place:
        """Return a number of its steps with the scale that it is on."""
        return Place(step, self.number if self.scale is Scale.ATTEMPT else None)

    def training_step(self, step: int | None) -> int | None:
        """Return a number of its steps as the training counts it; None where only the attempt's own count is known."""
        return None if step is None else self.place_of(step).on_training

    @property
    def failed_from_copy(self) -> bool:
        """Whether its program was given a generation and ended by itself before its first step.

        A copy lacks what lies around the file. Not every program names what it misses: where its settings are gone, it
        may go on with others and fail by those.
        """
        if self.first_step_at is not None or self.exit is None or self.exit.signal is not None:
            return False
        given = self.resume_from
        return given is not None and given.source is not None and given.kind == "checkpoint"

    @property
    def went_on_from(self) -> Place | None:
        """Where in the training it began: by its first step, or else by its checkpoint; None where that is unknown."""
        if self.scale is Scale.TRAINING and self.first_step is not None and self.first_step > 1:
            return Place(self.first_step - 1)
        if self.loads_itself and (self.scale is not Scale.TRAINING or self.first_step is None):
            return None
        if self.went_on is False:
            return Place(0)
        if self.scale is Scale.ATTEMPT and self.went_on is not True:
            return None  # it may have loaded another file than it was given, or one of its own
        if self.resume_from is None:
            return Place(0)
        return on_training(self.resume_from.step)

    @property
    def steps_made(self) -> int | None:
        """How many steps it has made itself; None where that is not known."""
        return None if self.last_step is None else self.made_here(self.last_step)

    def made_here(self, step: int) -> int | None:
        """Return how many steps it has made itself by `step`; None where its first one was never read."""
        return None if self.first_step is None else step - self.first_step + 1

    @property
    def ending(self) -> str:
        """How it ended, to complete a sentence about its process."""
        if self.launch_error is not None:
            return f"could not be launched: {self.launch_error}"
        if self.host_lost is not None:
            return f"was lost: {self.host_lost}"
        return self.exit.words if self.exit is not None else "has not ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """Why and since when an attempt is being ended."""

    at: Moment
    reason: str
    save: bool
    flag: RedFlag | None = None
    signalled_at: Moment | None = None
    """When the training was asked to end; None while evidence is being taken."""
    killed_at: Moment | None = None
    order: StartOrder | None = None
    """The start that it is ended for, where a tune asked for that."""
    refused_start: str | None = None
    """Why what a tune had on trial in it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPlan:
    """What a job in backoff waits for; one that has ended without success keeps it for its next start."""

    not_before: Moment
    reason: str
    resume_point: ResumePoint | None = None
    fault_unix_s: float | None = None
    fault_step: int | None = None
    older_than: Checkpoint | None = None
    """Where there is one, a checkpoint older than this is resumed from: the remedy is an older generation."""
    resort: str | None = None
    """The last resort to take first: it is the remedy."""
    died_unix_s: float | None = None
    """When the attempt was launched whose program failed before its first step: of a save of its own, it may be."""
    blamed_unix_s: float | None = None
    """When that attempt was launched, where the one before failed in the same way and both loaded what the program
    saved last, which cannot be verified: the save before it is to be tried."""
    awaits_triage: bool = False
    """Whether the retry is still to be decided, once its triage is over."""
    order: StartOrder | None = None
    """The start that a tune asked for; of the next attempt alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the user wants, the process that tries, and the account of both; changed by `replace` alone."""

    name: str
    limits: Limits = field(default_factory=Limits)
    desired_state: DesiredState = DesiredState.RUN
    phase: Phase = Phase.PENDING
    since: Moment
    """When it entered its phase."""
    attempt: Attempt | None = None
    stop: StopOrder | None = None
    retry: RetryPlan | None = None
    ledger: Ledger = field(default_factory=Ledger)
    incident: Incident | None = None
    open_flags: frozenset[tuple[str, str, int]] = frozenset()
    """Keys of the flags already reported, so that each is reported once."""
    shadows: frozenset[tuple[str, str, int]] = frozenset()
    """Keys of the shadow flags that hold now, so that each is recorded once."""
    shadows_noted: int = 0
    """Shadow flags recorded so far."""
    unkillable: bool = False
    resorts: tuple[ResortTaken, ...] = ()
    """The last resorts that were taken since it last made progress."""
    miopen_failed: bool = False
    """MIOpen has failed in this job: `conv2d = "auto"` patches from now on."""
    course: Course = field(default_factory=Course)
    """The remedies that were tried, and those in force."""
    triage: TriageState | None = None
    """The triage under way, or the last one."""
    framework: str | None = None
    """The framework, as the agent reported in a plan: `ultralytics`."""
    adjustable: tuple[str, ...] = ()
    """Settings that the framework's hook can change, or that the script itself asks the agent for."""
    torch: bool = False
    """Whether the agent met torch in a training of this job."""
    batches_per_epoch: int | None = None
    renumbered: bool = False
    """Whether an epoch once had another number of steps: steps of then and now cannot be compared."""
    restart_asked: bool = False
    fresh_asked: bool = False
    """The restart that was asked is one from the beginning."""
    start_curve: Curve | None = None
    """The first losses of its training: one that restarts has similar ones again."""
    asked_start: StartOrder | None = None
    """The start that a tune asked for, until the attempt under way is ended for it."""
    tuned: TunedStart | None = None
    """What a tune has proven for its starts."""
    start_refused: str | None = None
    """Why the newest attempt, or the one that was not launched, could not be started as tuned."""
    tune_ends: int = 0
    """How often it died in steps to which a tune had lent settings, without being charged for that."""
    resumes_in_place: bool = False
    """A start from a generation failed: the next is given the file in its own place, where what it lacked may lie."""
    began_unix_s: float | None = None
    """When it was last launched from the beginning: what was saved earlier belongs to another training."""
    clock_before_unix_s: float | None = None
    """The furthest that the wall clock had been before it was set back; files may have later times than now since."""
    needs_others: bool = False
    """Whether its program has failed as other files were missing next to its checkpoint: it is given its own file."""
    shutting_down: bool = False
    highest_number: int = 0
    """The highest number that a folder of an attempt has, where the record knows none so high."""
    rebuilt: str | None = None
    """What was restored from the folders of its attempts, where the record was lost; for a person."""
    reason: str | None = None
    """Why it is in its phase, for a person."""

    def moved(self, move: Move, at: Moment, reason: str | None = None) -> Job:
        """Return the job after `move`; raise ImpossibleMove where the table has none."""
        target = MOVES.get((self.phase, move))
        if target is None:
            raise ImpossibleMove(f"job {self.name}: {move.value} is no move from {self.phase.value}")
        return replace(self, phase=target, since=at, reason=reason)

    @property
    def number(self) -> int:
        """Number of the present or last attempt; 0 before the first."""
        return self.attempt.number if self.attempt else 0

    @property
    def next_number(self) -> int:
        """Number of the next attempt: one that neither the record nor a folder has."""
        return max(self.number, self.highest_number) + 1

    @property
    def gpu(self) -> str | None:
        """The GPU that a remedy moved it to, unless the remedy is forbidden by now."""
        return self.course.gpu if self.limits.remedies.allows("other_gpu") and not self.on_cpu else None

    @property
    def remedy_environment(self) -> str | None:
        """The environment that a remedy moved it to, unless the remedy is forbidden by now."""
        return self.course.environment if self.limits.remedies.allows("other_environment") else None

    @property
    def environment(self) -> str | None:
        """The environment of the attempt under way or the next one: a remedy's, or else a tune's."""
        start = self.attempt.start if self.phase in ALIVE and self.attempt is not None else self.next_start
        return self.remedy_environment or (start.environment if start is not None else None)

    @property
    def next_start(self) -> TunedStart | None:
        """What a tune has the next attempt started with."""
        order = self.retry.order if self.retry is not None else None
        return order.start if order is not None else self.tuned

    def loads_itself(self, number: int) -> bool:
        """Whether the program of attempt `number`, present or next, has to find by itself what it goes on from."""
        if self.attempt is not None and self.attempt.number == number:
            return self.attempt.loads_itself
        point = self.retry.resume_point if self.retry is not None else None
        return point is not None and point.loads_itself

    @property
    def environment_problem(self) -> str | None:
        """Why its next attempt cannot be launched in its other environment; None: it can."""
        point = self.retry.resume_point if self.retry is not None else None
        if self.phase is not Phase.BACKOFF or point is None or self.environment is None:
            return None
        return point.environment_problem

    @property
    def on_cpu(self) -> bool:
        """Whether it runs by the CPU profile."""
        return self.course.has("cpu_profile") and self.limits.remedies.allows("cpu_profile")

    def training_began_unix_s(self, saved_unix_s: float) -> float | None:
        """Return when the training began that something saved then belongs to; None where no beginning is known.

        One that was given a checkpoint and started from the beginning all the same is another training from then on.
        """
        attempt = self.attempt
        if attempt is not None and attempt.went_on is False and saved_unix_s >= attempt.launched_at.unix_s:
            return attempt.launched_at.unix_s
        return self.began_unix_s

    @property
    def uses_torch(self) -> bool:
        """Whether torch trains, as far as was reported; Keras may run on JAX."""
        return self.torch or self.framework not in (None, "keras")

    @property
    def awaits_triage(self) -> bool:
        """Whether it waits for a triage before its retry is decided."""
        return self.phase is Phase.BACKOFF and self.retry is not None and self.retry.awaits_triage

    @property
    def replaying(self) -> bool:
        """Whether a replay of a bad step may be running on its GPU."""
        return self.triage is not None and self.triage.replaying

    def ended(self, cause: str, step: int | None, finding: Finding | None = None, fault: str | None = None) -> Ended:
        """Return what decides about the remedy, once its attempt ended by `cause` at `step`."""
        attempt = self.attempt
        return Ended(
            cause=cause,
            fault=fault,
            step=step,
            adjustable=self.adjustable,
            torch=self.uses_torch,
            torch_version=None if attempt is None else attempt.torch,
            shortage=None if attempt is None else attempt.shortage,
            patched=attempt is not None and attempt.patched,
            resumed=attempt is not None and attempt.resume_from is not None,
            resorts_taken=tuple(resort_taken.kind for resort_taken in self.resorts),
            finding=finding,
        )
