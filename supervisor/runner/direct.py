"""Starts shims as processes of nobody, where no systemd can: in a container, an allocation, a test; it keeps no state.

A shim of an earlier daemon is as good as one of this: whatever is needed to find it again stands in its folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from supervisor.runner import shim, standby
from supervisor.runner.attempt import living_shim, read_shim, read_start_error
from supervisor.runner.launcher import LAUNCH_LIMIT_S, LaunchError
from supervisor.runner.shim import Process

NOT_FOR_TRAININGS = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "JOURNAL_STREAM"}
    | {"INVOCATION_ID", "SYSTEMD_EXEC_PID", "CREDENTIALS_DIRECTORY", "RUNTIME_DIRECTORY", "STATE_DIRECTORY"}
)
"""What systemd says to the daemon alone: a training must neither answer for it nor find its credentials."""
KILL_ROUNDS = 20


class DirectLauncher:
    """Starts each shim in a session of its own, with no pipe to this process and no parent but init."""

    def __init__(self, python: str = sys.executable, limit_s: float = LAUNCH_LIMIT_S) -> None:
        """`python` (3.10 or later) runs the shim, `limit_s` is how long it may take to leave word."""
        self._command = (python, "-I", "-S", str(Path(shim.__file__).resolve()), "--detach")
        self._limit_s = limit_s

    def launch(self, slot: str, folder: Path) -> None:
        """See `Launcher.launch`. The shim's first process ends at once and is reaped here: no zombie stays.

        The shim holds its standard output until it left word, so that its end of file is the answer.
        """
        status, said = self._run(slot, folder, lambda: self.kill_all(slot, folder))
        if read_shim(folder) is None or status != 0:
            raise LaunchError(f"{slot}: {read_start_error(folder) or said or 'the shim ended without a word'}")

    def stand_by(self, slot: str, folder: Path) -> None:
        """See `Launcher.stand_by`."""
        _, said = self._run(slot, standby.folder_of(folder), lambda: self.dismiss(slot, folder))
        if not standby.waits(folder):
            raise LaunchError(standby.refused(folder) or said or "the shim ended without a word")

    def go(self, slot: str, folder: Path) -> str | None:
        """See `Launcher.go`."""
        return standby.go(folder, self._limit_s)

    def dismiss(self, slot: str, folder: Path) -> None:
        """See `Launcher.dismiss`."""
        if not standby.end(folder) and not standby.going(folder):
            for one in _shims_by_command(standby.folder_of(folder), shim.AS_STANDBY):
                shim.send(one, signal.SIGKILL)

    def _run(self, slot: str, folder: Path, give_up: Callable[[], None]) -> tuple[int, str]:
        """Start a shim on a folder; return the status of its first process and what it said before it let go."""
        env = {name: value for name, value in os.environ.items() if name not in NOT_FOR_TRAININGS}
        try:
            process = subprocess.Popen(
                (*self._command, str(folder)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env=env,
            )
        except OSError as error:
            raise LaunchError(f"{slot}: the shim could not be started: {error}") from error
        try:
            said, _ = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            give_up()
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel keeps the pipe
                process.communicate(timeout=1.0)
            raise LaunchError(f"{slot}: the shim left no word within {self._limit_s:.0f} s") from None
        return process.returncode, said.decode(errors="backslashreplace").strip()

    def signal(self, slot: str, folder: Path, signal_number: int) -> bool:
        """See `Launcher.signal`."""
        return any(shim.send(one, signal_number) for one in _shims(folder))

    def kill_all(self, slot: str, folder: Path) -> None:
        """See `Launcher.kill_all`. The tree first: without its shim it would have to be found by its session."""
        shims = _shims(folder)
        for _ in range(KILL_ROUNDS):  # again and again, for a process may have forked in between
            reached = [one for one in _members(folder, shims) if shim.send(one, signal.SIGKILL)]
            if all(one.state == "D" for one in reached):
                break  # nobody is left, or nobody that a signal reaches
        for one in shims:
            shim.send(one, signal.SIGKILL)

    def alive(self, slot: str, folder: Path) -> bool:
        """See `Launcher.alive`. What a killed shim left behind counts, and a shim that has left no word yet."""
        shims = _shims(folder)
        return bool(shims or _members(folder, shims))


def _shims(folder: Path) -> list[Process]:
    """Return the living shim of the attempt, also one that has left no word yet."""
    if read_shim(folder) is None:
        went = _shims_by_command(standby.folder_of(folder), shim.AS_STANDBY) if standby.going(folder) else []
        return [*_shims_by_command(folder), *went]
    living = living_shim(folder)
    return [living] if living else []


def _members(folder: Path, shims: list[Process]) -> list[Process]:
    """Return what runs of the attempt beside its shim.

    Those are the shim's descendants, as it adopts every orphan; of a shim that was killed, its session.
    """
    processes = shim.read_processes()
    if shims:
        return [below for one in shims for below in shim.descendants(one.pid, processes)]
    note = read_shim(folder)
    if note is None or note.boot_id != shim.boot_id():
        return []
    if any(one.pid == note.pid and one.start_ticks != note.start_ticks for one in processes):
        return []  # the kernel gives a number away again only when no process has it as its session any more
    return [one for one in processes if one.session == note.pid and one.pid != note.pid and not one.dead]


def _shims_by_command(folder: Path, program: str = shim.AS_MODULE) -> list[Process]:
    """Return living shims that left no word yet: session leaders whose command line ends with the folder.

    Only of those that could be one the command line is read: of a process stuck in the kernel that may never return.
    """
    name = os.fsencode(folder.resolve())
    found = []
    for process in shim.read_processes():
        if process.pid != process.session or process.state in "DZX":
            continue
        try:
            arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[-2:-1] == [name] and program.encode() in arguments:
            found.append(process)
    return found
