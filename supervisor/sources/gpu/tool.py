"""Runs a vendor's tool once and returns its standard output; and what the sources have in common that run AMD's tools.

While a tool that cannot be killed is still running (it waits in the kernel for a GPU in reset), it is not started
again.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from supervisor import programs
from supervisor.children.child import Child
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.source import SourceSilentError


class Tool:
    """One command line."""

    def __init__(self, command: Sequence[str], deadline_s: float) -> None:
        self._command = tuple(command)
        self._deadline_s = deadline_s
        self._undead: Child | None = None

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


class AmdTool(ABC):
    """One of AMD's tools as a source: it costs its processes at each reading, and none without the driver."""

    name: ClassVar[str]
    vendor: ClassVar[str] = "amd"
    wait_s: ClassVar[float] = 0.0
    runs: ClassVar[int] = 1
    """How often the tool is run for one reading, at the most."""

    def __init__(
        self,
        command: Sequence[str] | None = None,
        interval_s: float = 10.0,
        deadline_s: float = 10.0,
        sys_root: Path | None = None,
    ) -> None:
        """`command` is the source's name if None; with `sys_root` it is run only while the driver is loaded."""
        self._tool = Tool(command or (self.name,), deadline_s / self.runs)
        self._sys_root = sys_root
        self.interval_s = interval_s
        self.deadline_s = deadline_s

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Run the tool. Raises SourceSilentError without driver or tool, if it is too slow, or lists no GPU."""
        if self._sys_root is not None:
            require_driver(self._sys_root)
        readings = self._query(now)
        if not readings:
            raise SourceSilentError(f"{self.name} lists no GPU")
        return readings

    @abstractmethod
    def _query(self, now: Moment) -> tuple[GpuReading, ...]:
        """Run the tool and return what it lists."""

    def close(self) -> None:  # noqa: B027 - every tool of theirs ends by itself
        """Do nothing: no resource is kept open."""


def require_driver(sys_root: Path) -> None:
    """Raise SourceSilentError if no amdgpu driver is loaded, so that no process is started for a query.

    A driver that is built into the kernel has this folder too, for its parameters.
    """
    module = sys_root / "module/amdgpu"
    if not module.exists():
        raise SourceSilentError(f"no amdgpu driver ({module} does not exist)")
