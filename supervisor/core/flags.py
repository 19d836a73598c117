"""Red flags: what a rule concluded, how severe it is, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from supervisor.core.moments import Moment

Act: TypeAlias = bool | Literal["shadow"]
"""What a rule's critical flags do: act (true), be reported as warnings (false), or only be recorded (`shadow`)."""

SHADOW = "shadow"


class Severity(IntEnum):
    """`critical` acts, `warning` is reported, `info` is recorded."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def label(self) -> str:
        """The name that people, the database and programs see."""
        return self.name.lower()

    @classmethod
    def acting(cls, *, act: Act) -> Severity:
        """Return the severity of what a rule would act on: a warning where its `act` is off."""
        return cls.CRITICAL if act else cls.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The explanation of a flag for its owner; the message says what was observed."""

    ruled_out: tuple[str, ...] = ()
    """Causes that are ruled out, each with the reason."""
    causes: tuple[str, ...] = ()
    """Possible causes, the likeliest first, each with its source in brackets."""
    advice: tuple[str, ...] = ()
    """What the owner could do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedFlag:
    """One conclusion of one rule about one attempt."""

    rule: str
    severity: Severity
    at: Moment
    """When it was concluded."""
    message: str
    """What was observed, with numbers, for a person."""
    since: Moment | None = None
    """When the fault began; a checkpoint written later is not resumed from. None: the state is good."""
    since_step: int | None = None
    """First step that the fault affected, where known."""
    can_save: bool = False
    """Whether the state of the training is good, so that it may be saved before it is stopped."""
    subject: str = ""
    """What it is about within the job (a GPU, a disk), so that a rule can flag two of them."""
    fault: str | None = None
    """The class of a crash or of a kernel finding."""
    diagnosis: Diagnosis | None = None
    start_failure: str | None = None
    """What identifies an end before the first step that comes from the program itself (`core.start_failure`)."""
    at_start: bool = False
    """Whether it is the end of an attempt that has made no step, as far as can be known."""
    stopped_pids: tuple[int, ...] = ()
    """Processes that a signal has stopped, which explains it: SIGCONT may continue them. Empty: not to be tried."""
    shadow: bool = False
    """Whether it is only recorded: a rule in shadow concluded it."""

    @property
    def key(self) -> tuple[str, str, Severity]:
        """Two flags of the same key report the same condition."""
        return (self.rule, self.subject, self.severity)
