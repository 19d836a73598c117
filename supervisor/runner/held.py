"""Starts shims as children that end with the daemon: where it is a task of Slurm or of another engine.

An engine ends a task by its process tree. A shim that left the tree, as `DirectLauncher` has it, would go on training
on a node that the engine gives to another user.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from supervisor.children.child import Child
from supervisor.programs import Output, read_until_closed
from supervisor.runner import shim
from supervisor.runner.direct import MESSAGE_LIMIT_BYTES, DirectLauncher
from supervisor.runner.launcher import LAUNCH_LIMIT_S
from supervisor.runner.shim import Process


class HeldLauncher(DirectLauncher):
    """Starts each shim in its own session, as a child of this process, with whose end the kernel ends it.

    The kernel takes the starting thread for the parent: `children.start` keeps that thread until the child has ended.
    What it has started it knows by itself: an attempt's folder may lie on a file system of all nodes, and hang.
    """

    def __init__(self, python: str = sys.executable, limit_s: float = LAUNCH_LIMIT_S) -> None:
        """See `DirectLauncher`."""
        super().__init__(python, limit_s)
        self.arguments = ("--held", str(os.getpid()))
        self._started: dict[str, tuple[Path, Process]] = {}
        """The newest attempt of each slot that has reported, and its shim."""

    def _read_report(self, slot: str, folder: Path, process: Child) -> Output:
        """Return what a shim printed until it has reported; it is reaped whenever it ends."""
        output = read_until_closed(process, self._limit_s, MESSAGE_LIMIT_BYTES)
        if output.complete:
            started = shim.read_process(process.pid)
            if started is not None:
                self._started[slot] = (folder, started)
            process.abandon()
        return output

    def _find_started(self, slot: str, folder: Path) -> Process | None:
        """Return the shim that was started for this attempt, also once it has ended; None where it is not known."""
        at, started = self._started.get(slot, (None, None))
        return started if at == folder else None

    def _find_shims(self, slot: str, folder: Path) -> list[Process]:
        started = self._find_started(slot, folder)
        if started is None:
            return super()._find_shims(slot, folder)
        now = shim.read_living(started)
        return [] if now is None else [now]

    def _find_session(self, slot: str, folder: Path) -> int | None:
        started = self._find_started(slot, folder)
        return super()._find_session(slot, folder) if started is None else started.pid
