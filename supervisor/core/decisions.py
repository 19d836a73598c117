"""Every decision that can be made about a job, as a value; carrying it out happens elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from supervisor.core.checkpoints import Checkpoint
from supervisor.core.flags import RedFlag
from supervisor.core.freed import CardMemory
from supervisor.core.moments import Moment
from supervisor.core.triage import Finding, LookedFor


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start an attempt."""

    at: Moment
    job: str
    attempt: int
    resume_from: Checkpoint | None
    reason: str
    memory: tuple[CardMemory, ...] = ()
    """What is taken of its cards' memory by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Tell the owner; touch nothing."""

    at: Moment
    job: str
    attempt: int
    flag: RedFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Keep for the record what a rule in shadow would have acted on; tell nobody, touch nothing."""

    at: Moment
    job: str
    attempt: int
    flag: RedFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Take evidence where there is a flag, let the training save where its state is sound, then SIGTERM."""

    at: Moment
    job: str
    attempt: int
    reason: str
    save: bool
    flag: RedFlag | None = None
    takes_back: str | None = None
    """The remedy that is not wanted any more: the reason of a planned restart without a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL to the whole tree."""

    at: Moment
    job: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastResort:
    """Run a command on the machine that its owner allowed for when nothing else is left."""

    at: Moment
    job: str
    attempt: int
    reason: str
    kind: str
    """One of `core.resorts.RESORTS`."""
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine:
    """Find out what was to blame before a retry is decided: look for the state to replay from."""

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
    """Replay the bad step, on the card of the attempt that is gone."""

    at: Moment
    job: str
    attempt: int
    reason: str
    step: int
    looked_for: LookedFor
    resume_from: Checkpoint | None
    """From where, unless there is a snapshot, from which all is made again as it was."""


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
    """Whether it spends the budget; a restart that somebody asked for does not."""
    cause: str | None = None
    """What the remedy is against; None where nothing was wrong."""
    remedy: str | None = None
    why: str | None = None
    """Why this remedy, for a person."""
    step: int | None = None
    """Where the trouble was that the remedy is against."""
    card: str | None = None
    """PCI address that the remedy is about."""
    finding: Finding | None = None
    """What a triage said of the trouble, or of the one before it at the same place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Leave the job alone until somebody starts it."""

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
    """What was wrong all the same, so that a later start resumes from before it."""


Decision: TypeAlias = Launch | Warn | Note | Stop | Kill | LastResort | Examine | Triage | Retry | GiveUp | Finish
