"""The protocol of launchers, which start, signal and find shims.

A slot is a job's name: at most one attempt of a job runs at a time, and its shim outlives the daemon.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Protocol

from supervisor.children.worker_threads import NO_THREAD
from supervisor.core import attempt_files as fo
from supervisor.runner.process_table import Process

LAUNCH_LIMIT_S = 10.0
"""How long `launch` waits for a shim to report."""
KILL_ROUNDS_BY_SHIM = 2
BUSY_ROUNDS = 10
RESTING_KILL_S = 30.0


class LaunchError(RuntimeError):
    """The training could not be started; the message says why."""


class SilentShimError(LaunchError):
    """A shim that was started did not report in time: its machine is stalled, as by a disk that does not answer."""


class EngineError(LaunchError):
    """Whether a container of the job still runs is not known, since its engine does not answer."""


SHORTAGES = {
    errno.EMFILE: "file descriptors for the daemon",
    errno.ENFILE: "file descriptors",
    errno.ENOMEM: "memory",
    errno.EAGAIN: "room for another process",
    errno.ENOSPC: "disk space or inodes (`df -h`, `df -i`)",
    errno.EDQUOT: "disk quota",
    errno.EROFS: "a disk that can be written",
    errno.EIO: "a disk that works",
    errno.ENOBUFS: "buffers",
    errno.ETIMEDOUT: "an answer from the disk of a program",
}
"""The resource that is exhausted, by the error of a system call; temporary and not caused by the job."""


def shortage_of(error: BaseException) -> str | None:
    """Return the exhausted resource if that was why a launch failed; None for any other reason.

    A shim reports its own error as text, so the message is searched too.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, EngineError):
            return "a container engine that answers"
        if isinstance(cause, SilentShimError):
            return "a disk and a processor that start a program in time"
        if isinstance(cause, OSError) and cause.errno in SHORTAGES:
            return SHORTAGES[cause.errno]
        if isinstance(cause, MemoryError):
            return SHORTAGES[errno.ENOMEM]
        cause = cause.__cause__
    text = str(error)
    if NO_THREAD in text:
        return "room for another thread"
    return next((resource for number, resource in SHORTAGES.items() if os.strerror(number) in text), None)


class Launcher(Protocol):
    """Starts shims and finds them again, including those that an earlier daemon started."""

    def launch(self, slot: str, folder: Path) -> None:
        """Start the shim for the attempt in `folder`, which contains launch.json, and wait for shim.json.

        Raises LaunchError if the command could not be started (with the shim's reason), if another attempt of the
        slot still runs, or if the shim did not report within LAUNCH_LIMIT_S; then no process is left running.
        """
        ...

    def signal(self, slot: str, folder: Path, signal_number: int) -> bool:
        """Send the shim a signal (`SHIM_*` in `core.attempt_files`); return whether it was delivered."""
        ...

    def kill_all(self, slot: str, folder: Path) -> None:
        """Send SIGKILL to all processes of the attempt and its shim; then no exit.json is written.

        Returns without waiting, and raises nothing if no process is running; a process in state D remains.
        """
        ...

    def alive(self, slot: str, folder: Path) -> bool:
        """Return whether a process of the attempt may still run, so that no other may start on its GPU.

        The process named in shim.json is identified by pid, start time and boot, so a reused pid is not counted.
        """
        ...

    def stand_by(self, slot: str, folder: Path) -> None:
        """Start a standby shim for the attempt in `folder`, prepared by `runner.standby.prepare`.

        Returns once it has been started. Raises LaunchError if it cannot be started.
        """
        ...

    def go(self, slot: str, folder: Path) -> str | None:
        """Promote the standby to the attempt in `folder`, which contains launch.json; return why it refused, or None.

        If it refused, no process of the attempt runs. Raises LaunchError as `launch` does.
        """
        ...

    def dismiss(self, slot: str, folder: Path) -> None:
        """End the standby of the attempt in `folder`, if there is one; a promoted standby keeps running."""
        ...

    def find_shim(self, slot: str, folder: Path) -> Process | None:
        """Return the running shim of an attempt, whatever its training has written in its name; None if none runs."""
        ...

    def find_unit(self, slot: str, folder: Path) -> str | None:
        """Return the systemd unit that the attempt runs in; None for one that runs in none of its own."""
        ...


def kill_until_gone(launcher: Launcher, job: str, folder: Path, again_s: float) -> None:
    """SIGKILL until nothing is left: by the shim first, which reports the exit; from outside after that."""
    kill, rounds = signal.Signals[fo.SHIM_KILL], 0
    while launcher.alive(job, folder):
        if rounds >= KILL_ROUNDS_BY_SHIM or not launcher.signal(job, folder, kill):
            launcher.kill_all(job, folder)
        rounds += 1
        time.sleep(again_s if rounds < BUSY_ROUNDS else RESTING_KILL_S)
