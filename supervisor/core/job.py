"""A job and where it stands; it moves only as the table says, and what the table lacks raises.

    pending --launch--> starting --step--> running --stop--> stopping --kill--> killing
       ^                    |                 |                  |                 |
       |                    +----- examine / retry / finish / give_up / rest ------+
       +--- wake --- finished                             backoff --launch--> starting
    stopped, failed --resume--> backoff                   (looks for a checkpoint first,
                                                          examined --retry--> backoff)

A phase says what may happen next, the fields of `Job` what is known there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from supervisor.core.budget import Budget, Ledger
from supervisor.core.checkpoints import Checkpoint, ResumePoint
from supervisor.core.choosing import Ended
from supervisor.core.course import Course
from supervisor.core.curve import Curve, Resumed
from supervisor.core.examination import Examination
from supervisor.core.flags import RedFlag
from supervisor.core.freed import CardMemory
from supervisor.core.incident import Incident
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, KernelWait
from supervisor.core.remedies import Remedies
from supervisor.core.resorts import ResortTaken
from supervisor.core.triage import Finding


class Wish(Enum):
    """What the user wants; it outranks every rule."""

    RUN = "run"
    STOP = "stop"


class Phase(Enum):
    """Where a job stands, in the words of status and database."""

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
    EXAMINE = "examine"
    """The attempt is over, and what the retry is to be is found out first."""
    RETRY = "retry"
    FINISH = "finish"
    REST = "rest"
    GIVE_UP = "give_up"
    WAKE = "wake"
    """From the beginning."""
    RESUME = "resume"
    """From a checkpoint, which has to be looked for first."""


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
    **{(phase, Move.EXAMINE): Phase.BACKOFF for phase in ALIVE},
    **{(phase, Move.RETRY): Phase.BACKOFF for phase in (*ALIVE, Phase.BACKOFF)},
    **{(phase, Move.FINISH): Phase.FINISHED for phase in ALIVE},
    **{(phase, Move.REST): Phase.STOPPED for phase in ALIVE},
    **{(phase, Move.GIVE_UP): Phase.FAILED for phase in ALIVE},
    **{(phase, Move.WAKE): Phase.PENDING for phase in ENDED},
    (Phase.STOPPED, Move.RESUME): Phase.BACKOFF,
    (Phase.FAILED, Move.RESUME): Phase.BACKOFF,
}


LAUNCH = "launch"
"""Name of the flag of an attempt that could not be launched."""
UNKILLABLE = "unkillable"
"""Name of the flag of a process that SIGKILL does not end."""


class ImpossibleMove(RuntimeError):  # noqa: N818 - named for what happened, as the table's readers say it
    """A move that the table lacks: a defect of ours, never of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What deciding needs to know of a job's settings."""

    grace_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    save_s: float = 20.0
    """How long the training may take to save before SIGTERM."""
    kill_wait_s: float = 10.0
    """From SIGKILL until a process that is still there is called unkillable."""
    freed_wait_s: float = 60.0
    """From the end of an attempt, how long its memory on the cards may take to be freed before the next; 0: no wait."""
    resort_s: float = 60.0
    """How long the command of a last resort may take."""
    triage_s: float | None = None
    """How long the replays of a bad step may take before a retry; None: none are made by themselves."""
    budget: Budget = field(default_factory=Budget)
    remedies: Remedies = field(default_factory=Remedies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One process trying."""

    number: int
    launched_at: Moment
    resume_from: Checkpoint | None = None
    resume_curve: Curve | None = None
    """The losses around the step of `resume_from`, which this attempt is to continue."""
    memory_before: tuple[CardMemory, ...] = ()
    """What was taken of its cards' memory when it was launched, as far as that was known."""
    shim_pid: int | None = None
    training_pid: int | None = None
    first_step_at: Moment | None = None
    last_step: int | None = None
    last_step_at: Moment | None = None
    epoch: int | None = None
    loss: float | None = None
    train_ended: bool = False
    """Whether the training said that it came to its end; its process may go on and may still crash."""
    patched: bool = False
    """Whether the agent replaced its Conv2d."""
    exit: ExitStatus | None = None
    host_lost: str | None = None
    launch_error: str | None = None
    waits: tuple[KernelWait, ...] = ()
    """Which of its threads waited in the kernel when last looked at, once it was sent SIGKILL."""

    @property
    def over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.exit is not None or self.host_lost is not None or self.launch_error is not None

    @property
    def resumed(self) -> Resumed | None:
        """Where it was resumed; None for one from the beginning, and where the step is not known."""
        if self.resume_from is None or self.resume_from.step is None:
            return None
        return Resumed(step=self.resume_from.step, curve=self.resume_curve)

    @property
    def ending(self) -> str:
        """How it ended, as the end of a sentence about its process."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPlan:
    """What a job in backoff waits for; a failed or stopped one keeps it for the day it is started again."""

    not_before: Moment
    reason: str
    resume_point: ResumePoint | None = None
    trouble_unix_s: float | None = None
    trouble_step: int | None = None
    older_than: Checkpoint | None = None
    """Where there is one, a checkpoint older than this is resumed from: the remedy is an older generation."""
    resort: str | None = None
    """The last resort to take first: it is the remedy."""
    examining: bool = False
    """Whether the retry is still to be decided, once its triage is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the user wants, the process that tries, and the account of both; changed by `replace` alone."""

    name: str
    limits: Limits = field(default_factory=Limits)
    wish: Wish = Wish.RUN
    phase: Phase = Phase.PENDING
    since: Moment
    """When it entered its phase."""
    attempt: Attempt | None = None
    stop: StopOrder | None = None
    retry: RetryPlan | None = None
    ledger: Ledger = field(default_factory=Ledger)
    incident: Incident | None = None
    open_flags: frozenset[tuple[str, str, int]] = frozenset()
    """Keys of the flags already told, so that one trouble is told once."""
    shadows: frozenset[tuple[str, str, int]] = frozenset()
    """Keys of the flags in shadow that stand now, so that one trouble is noted once."""
    shadows_noted: int = 0
    """Flags in shadow ever noted."""
    unkillable: bool = False
    resorts: tuple[ResortTaken, ...] = ()
    """The last resorts that were taken since it last made progress."""
    miopen_failed: bool = False
    """MIOpen has failed in this job: `conv2d = "auto"` patches from now on."""
    course: Course = field(default_factory=Course)
    """The remedies that were tried, and those in force."""
    examination: Examination | None = None
    """The triage under way, or the last one."""
    framework: str | None = None
    """Who trains, as the agent told in a plan: `ultralytics`."""
    asked: tuple[str, ...] = ()
    """Settings that the script itself asks the agent for."""
    torch: bool = False
    """Whether the agent met torch in a training of this job."""
    batches_per_epoch: int | None = None
    renumbered: bool = False
    """Whether an epoch once had another number of steps: steps of then and now cannot be compared."""
    restart_asked: bool = False
    fresh_asked: bool = False
    """The restart that was asked is one from the beginning."""
    began_unix_s: float | None = None
    """When it was last launched from the beginning: what was saved earlier belongs to another training."""
    shutting_down: bool = False
    reason: str | None = None
    """Why it is where it is, for a person."""

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
    def card(self) -> str | None:
        """The card that a remedy moved it to, unless its owner forbids that by now."""
        return self.course.card if self.limits.remedies.allows("other_card") and not self.on_cpu else None

    @property
    def on_cpu(self) -> bool:
        """Whether it runs by the CPU profile."""
        return self.course.has("cpu_profile") and self.limits.remedies.allows("cpu_profile")

    @property
    def examining(self) -> bool:
        """Whether it waits for a triage before its retry is decided."""
        return self.phase is Phase.BACKOFF and self.retry is not None and self.retry.examining

    @property
    def replaying(self) -> bool:
        """Whether a replay of a bad step may be on its card."""
        return self.examination is not None and self.examination.replaying

    def ended(self, cause: str, step: int | None, finding: Finding | None = None) -> Ended:
        """Return what decides about the remedy, once its attempt ended by `cause` at `step`."""
        attempt = self.attempt
        return Ended(
            cause=cause,
            step=step,
            framework=self.framework,
            asked=self.asked,
            torch=self.torch or self.framework is not None,
            patched=attempt is not None and attempt.patched,
            resumed=attempt is not None and attempt.resume_from is not None,
            resorts_taken=tuple(one.kind for one in self.resorts),
            finding=finding,
        )
