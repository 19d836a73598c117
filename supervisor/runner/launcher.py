"""The protocol of launchers, which start, signal and find shims.

A slot is a job's name: at most one attempt of a job lives at a time, and its shim outlives the daemon.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Protocol

from supervisor.core import attempt_files as fo

LAUNCH_LIMIT_S = 10.0
"""How long `launch` waits for a shim to leave word."""
KILL_ROUNDS_BY_SHIM = 2
BUSY_ROUNDS = 10
RESTING_KILL_S = 30.0


class LaunchError(RuntimeError):
    """No training came up; the text says why, for a person."""


SHORTAGES = {
    errno.EMFILE: "file descriptors for the daemon",
    errno.ENFILE: "file descriptors",
    errno.ENOMEM: "memory",
    errno.EAGAIN: "room for another process",
    errno.ENOSPC: "disk space",
    errno.EDQUOT: "disk quota",
    errno.ENOBUFS: "buffers",
}
"""What is short where a system call says so; it may be had later, and no job is to blame."""
NO_THREAD = "can't start new thread"
"""What Python says where the system refuses one."""


def shortage_of(error: BaseException) -> str | None:
    """Return what the machine had none left of where that was why a launch failed; None for any other reason.

    A shim tells of its own error in words.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in SHORTAGES:
            return SHORTAGES[cause.errno]
        if isinstance(cause, MemoryError):
            return SHORTAGES[errno.ENOMEM]
        cause = cause.__cause__
    text = str(error)
    if NO_THREAD in text:
        return "room for another thread"
    return next((words for number, words in SHORTAGES.items() if os.strerror(number) in text), None)


class Launcher(Protocol):
    """Starts shims and reaches them again, also those that an earlier daemon started."""

    def launch(self, slot: str, folder: Path) -> None:
        """Start the shim on the attempt in `folder`, which holds launch.json, and return once shim.json is there.

        Raises LaunchError where the command could not be started (with the shim's own reason), where another
        attempt of the slot still runs, or where no word came within LAUNCH_LIMIT_S; then nothing is left running.
        """
        ...

    def signal(self, slot: str, folder: Path, signal_number: int) -> bool:
        """Send the shim a signal (`SHIM_*` in `core.folder`); return whether it was there to receive it."""
        ...

    def kill_all(self, slot: str, folder: Path) -> None:
        """SIGKILL everything of the attempt including the shim: the last resort, for nobody is left to write exit.json.

        It returns without waiting and raises nothing where all is gone already; what SIGKILL does not end stays.
        """
        ...

    def alive(self, slot: str, folder: Path) -> bool:
        """Return whether anything of the attempt may still run, so that nothing else may start on its card.

        Answers for the process that shim.json names (pid, start time and boot), never for a later one of its pid.
        """
        ...

    def stand_by(self, slot: str, folder: Path) -> None:
        """Start a shim that waits to be the one of the attempt in `folder`, as `runner.standby.prepare` left it.

        Returns once it is under way. Raises LaunchError where none can be started.
        """
        ...

    def go(self, slot: str, folder: Path) -> str | None:
        """Have what stands by become the attempt in `folder`, which holds launch.json; return why it does not.

        With a reason nothing of the attempt runs. Raises LaunchError as `launch` does.
        """
        ...

    def dismiss(self, slot: str, folder: Path) -> None:
        """End what stands by for the attempt in `folder`, if anything does; one that was told to go is left alone."""
        ...


def kill_until_gone(launcher: Launcher, job: str, folder: Path, again_s: float) -> None:
    """SIGKILL until nothing is left: by the shim first, which reports the exit; from outside after that."""
    kill, rounds = signal.Signals[fo.SHIM_KILL], 0
    while launcher.alive(job, folder):
        if rounds >= KILL_ROUNDS_BY_SHIM or not launcher.signal(job, folder, kill):
            launcher.kill_all(job, folder)
        rounds += 1
        time.sleep(again_s if rounds < BUSY_ROUNDS else RESTING_KILL_S)
