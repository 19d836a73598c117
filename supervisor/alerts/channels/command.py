"""A program of one's own: it gets the notice as JSON on standard input and runs as the daemon's user."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.settings import AlertSettings, ReceiverError, TimeoutS
from supervisor.core.sanitize import one_line, without_secrets
from supervisor.programs import run

PASSED_ON = ("HOME", "LANG", "LOGNAME", "PATH", "TZ", "USER", "XDG_RUNTIME_DIR")
"""Variables that the program gets: the daemon's others may hold secrets of other receivers."""
QUOTED_CHARACTERS = 200


class CommandSettings(AlertSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "command"."""

    command: Annotated[list[str], Meta(min_length=1)]
    """Program and arguments; no shell reads them."""
    timeout_s: TimeoutS = 30.0
    """After it the program and its children are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Runs a program for each notice."""

    settings_type: ClassVar[type[AlertSettings]] = CommandSettings
    command: tuple[str, ...]
    timeout_s: float

    @classmethod
    def from_settings(cls, name: str, settings: CommandSettings) -> Command:
        """Take the command; raise ReceiverError where its program has no absolute path."""
        if not settings.command[0].startswith("/"):
            raise ReceiverError(f"alerts.{name}.command: the program must have an absolute path")
        return cls(command=tuple(settings.command), timeout_s=settings.timeout_s)

    @property
    def destination(self) -> str:
        """Path of the program."""
        return self.command[0]

    def render(self, notice: KeptNotice) -> bytes:
        """Return the notice as the record keeps it."""
        return notice.content

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        """Run the program; its exit status 0 means delivered, what it printed is in the error of any other."""
        return run_with_input(self.command, content, self.timeout_s)


def run_with_input(command: tuple[str, ...], content: bytes, timeout_s: float) -> Answer:
    """Run a program on a text; return what became of it."""
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    try:
        ran = run(command, timeout_s, together=True, given=content, environment=environment)
    except OSError as error:
        return Answer(delivered=False, error=f"{command[0]} cannot be run: {error.strerror}")
    if ran.status == 0:
        return Answer(delivered=True)
    if ran.status is None:
        return Answer(delivered=False, error=f"{command[0]} did not end within {timeout_s:g} s; it was killed")
    printed = one_line(without_secrets(ran.stdout[:2000].decode("utf-8", "replace")), QUOTED_CHARACTERS)
    why = f"exit status {ran.status}" if ran.status > 0 else f"signal {-ran.status}"
    return Answer(delivered=False, error=f"{command[0]}: {why}{f': {printed}' if printed else ''}")
