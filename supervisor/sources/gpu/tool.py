"""Runs a vendor's tool once and returns what it printed.

Only standard output is returned, since warnings go to standard error. A tool that a signal cannot reach (it waits in
the kernel for a card in reset) is remembered: a second one would only join it there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from supervisor import programs
from supervisor.sources.gpu.source import SourceSilentError


class Tool:
    """One command line."""

    def __init__(self, command: Sequence[str], deadline_s: float) -> None:
        self._command = tuple(command)
        self._deadline_s = deadline_s
        self._undead: subprocess.Popen[bytes] | None = None

    def run(self, *more: str) -> str:
        """Return its standard output, whatever its exit status: tools exit with errors after good answers.

        Raises SourceSilentError where it is missing, too slow, or silent, with the last line of its complaint.
        """
        if self._undead is not None and self._undead.poll() is None:
            raise SourceSilentError(f"an earlier {self._command[0]} (pid {self._undead.pid}) could not be killed")
        try:
            ran = programs.run((*self._command, *more), self._deadline_s)
        except OSError as error:
            raise SourceSilentError(f"{self._command[0]}: {error.strerror or error}") from error
        self._undead = ran.undead
        if ran.status is None:
            raise SourceSilentError(f"no answer within {self._deadline_s:.0f} s")
        if not ran.printed.strip():
            said = ran.complained.decode("utf-8", "backslashreplace").strip().splitlines()
            name = os.path.basename(self._command[0])  # noqa: PTH119 (a command need not be a path)
            raise SourceSilentError(said[-1][:200] if said else f"{name} printed nothing, status {ran.status}")
        return ran.printed.decode("utf-8", "backslashreplace")
