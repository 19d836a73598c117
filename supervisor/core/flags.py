"""Red flags: what a rule concluded, how bad it is, and since when; a flag decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from supervisor.core.moments import Moment

Act: TypeAlias = bool | Literal["shadow"]
"""What a rule's critical flags do: act (true), be told as warnings (false), or only be recorded (`shadow`)."""

SHADOW = "shadow"


class Severity(IntEnum):
    """`critical` acts, `warning` tells, `info` is for the record."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        """The name that people, the database and programs see."""
        return self.name.lower()

    @classmethod
    def acting(cls, *, act: Act) -> Severity:
        """Return the severity of what a rule would act on: told only, where its `act` is off."""
        return cls.CRITICAL if act else cls.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What stands behind a flag, in words for its owner; the message says what was seen."""

    ruled_out: tuple[str, ...] = ()
    """What it is not, each with the reason."""
    causes: tuple[str, ...] = ()
    """What may be the cause, the likeliest first, each with its source in brackets."""
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
    """What was seen, with numbers, for a person."""
    since: Moment | None = None
    """When the trouble began; a checkpoint written later is not resumed from. None: the state is sound."""
    since_step: int | None = None
    """First step that the trouble touched, where it can be known."""
    can_save: bool = False
    """Whether the state of the training is sound, so that it may be saved before it is stopped."""
    subject: str = ""
    """What it is about beside the job (a card, a disk), so that one rule can flag two of them."""
    fault: str | None = None
    """The class of a crash or of a kernel finding."""
    diagnosis: Diagnosis | None = None
    shadow: bool = False
    """Whether it is only recorded: a rule on probation concluded it."""

    @property
    def key(self) -> tuple[str, str, Severity]:
        """Two flags of the same key are the same trouble going on."""
        return (self.rule, self.subject, self.severity)
