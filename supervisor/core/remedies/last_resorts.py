"""The last resorts: resetting a GPU, rebooting the machine; what each is and when it is due. It runs no command.

They are named in full whenever they would help, and taken only where the owner has switched them on, each once
between two signs of progress, and never while another job would suffer for it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from supervisor.core.moments import Moment

ResortKind: TypeAlias = Literal["reset_gpu", "reboot"]
RESORTS: tuple[ResortKind, ...] = ("reset_gpu", "reboot")
"""The milder first."""
SETTLE_S = 30.0
"""How long after a reset a process that SIGKILL did not end may take to end."""
REBOOT_S = 120.0
"""After a reboot was granted nothing is started for so long: the machine is going down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resort:
    """A last resort available on this machine to one job."""

    kind: ResortKind
    command: tuple[str, ...]
    on: bool = False
    """Whether its owner has switched it on."""
    refused: str | None = None
    """Why it may not be taken now, whatever its owner says."""

    @property
    def words(self) -> str:
        """The exact command, and why it is not run where it is not."""
        why = self.refused if self.on else f"last_resorts.{self.kind} is off"
        return f"`{shlex.join(self.command)}`" + (f" ({why})" if why else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResortTaken:
    """A last resort that was taken, and its result."""

    kind: str
    command: tuple[str, ...]
    at: Moment
    attempt: int
    """The attempt that it was taken after."""
    ended_at: Moment | None = None
    done: bool | None = None
    output: str = ""

    def busy(self, now: Moment, limit_s: float) -> bool:
        """Whether it is under way: its command, or a reboot that was granted. What is lost is not waited for."""
        if self.kind == "reboot" and self.done is not False:
            return now.seconds_since(self.at) < max(REBOOT_S, limit_s)
        return self.ended_at is None and now.seconds_since(self.at) < limit_s + SETTLE_S


def find_due(offered: Iterable[Resort], taken: Iterable[ResortTaken], now: Moment, limit_s: float) -> Resort | None:
    """Return the next one to take against a process that cannot be ended; None: wait, or there is none."""
    before = tuple(taken)
    if any(resort_taken.busy(now, limit_s) or _is_settling(resort_taken, now) for resort_taken in before):
        return None
    had = {resort_taken.kind for resort_taken in before}
    return next((resort for resort in offered if resort.on and resort.refused is None and resort.kind not in had), None)


def would_help(offered: Iterable[Resort], taken: Iterable[str] = ()) -> str:
    """Return a hint at what a person could do, empty where nothing is known."""
    had = frozenset(taken)
    named = [resort.words + (" (already done)" if resort.kind in had else "") for resort in offered]
    return f"what would help: {', else '.join(named)}" if named else ""


def _is_settling(resort_taken: ResortTaken, now: Moment) -> bool:
    return (
        resort_taken.ended_at is not None
        and resort_taken.done is True
        and now.seconds_since(resort_taken.ended_at) < SETTLE_S
    )
