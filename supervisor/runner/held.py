"""Starts shims as children that end with the daemon: where it is a task of Slurm or of another engine.

An engine ends a task by its process tree. A shim that left the tree, as `DirectLauncher` has it, would go on training
on a node that the engine gives to another user.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from supervisor.children.child import Child
from supervisor.children.running_limit import RunningLimit
from supervisor.programs import Output, read_until_closed
from supervisor.runner import process_table
from supervisor.runner.direct import MESSAGE_LIMIT_BYTES, DirectLauncher
from supervisor.runner.launcher import LAUNCH_LIMIT_S


class HeldLauncher(DirectLauncher):
    """Starts each shim in its own session, as a child of this process, with whose end the kernel ends it.

    The kernel takes the starting thread for the parent: `children.start` keeps that thread until the child has ended.
    """

    def __init__(self, python: str = sys.executable, limit_s: float = LAUNCH_LIMIT_S) -> None:
        """See `DirectLauncher`."""
        super().__init__(python, limit_s)
        self.arguments = ("--held", str(os.getpid()))

    def _read_report(self, slot: str, folder: Path, process: Child) -> Output:
        """Return what a shim printed until it has reported; it is reaped whenever it ends."""
        output = read_until_closed(process, RunningLimit(self._limit_s), MESSAGE_LIMIT_BYTES)
        if output.complete:
            started = process_table.read_process(process.pid)
            if started is not None:
                self._known[slot] = (folder, started)
            process.abandon()
        return output
