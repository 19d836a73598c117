"""Runs a vendor's tool once and returns its standard output.

While a tool that cannot be killed is still running (it waits in the kernel for a GPU in reset), it is not started
again.
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
        """Return its standard output, also for a non-zero exit status, which tools have after valid answers.

        Raises SourceSilentError if it is missing or too slow, or with its last line of standard error if it prints
        nothing.
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
        if not ran.stdout.strip():
            errors = ran.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
            name = os.path.basename(self._command[0])  # noqa: PTH119 (a command need not be a path)
            raise SourceSilentError(errors[-1][:200] if errors else f"{name} printed nothing, status {ran.status}")
        return ran.stdout.decode("utf-8", "backslashreplace")
