"""Starts shims as processes without systemd: in a container, an allocation or a test.

Everything needed to find a shim is in its folder, so shims of an earlier daemon are treated the same.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.children.child import Child
from supervisor.children.running_limit import RunningLimit
from supervisor.children.start import PIPE, STDOUT, start
from supervisor.core import attempt_files as names
from supervisor.programs import Output, read_output
from supervisor.runner import process_table, shim, standby
from supervisor.runner.attempt_folder import list_own_ancestors, living_shim, read_shim, read_start_error
from supervisor.runner.code_copy import SHIM_PROGRAM
from supervisor.runner.launcher import LAUNCH_LIMIT_S, LaunchError, SilentShimError
from supervisor.runner.process_table import Process
from supervisor.runner.process_words import read_words

NOT_FOR_TRAININGS = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "JOURNAL_STREAM"}
    | {"INVOCATION_ID", "SYSTEMD_EXEC_PID", "CREDENTIALS_DIRECTORY", "RUNTIME_DIRECTORY", "STATE_DIRECTORY"}
)
"""Variables that systemd sets for the daemon: a training must not notify in its place or find its credentials."""
KILL_ROUNDS = 20
MESSAGE_LIMIT_BYTES = 1 << 20
NO_MESSAGE = "the shim ended without an error message"


class DirectLauncher:
    """Starts each shim in its own session, without a pipe to this process and with init as its parent."""

    arguments: tuple[str, ...] = ("--detach",)
    """How the shim's program is started."""

    def __init__(self, python: str = sys.executable, limit_s: float = LAUNCH_LIMIT_S) -> None:
        """`python` (3.10 or later) runs the shim; `limit_s` is how long it may take to report."""
        self._python = python
        self._limit_s = limit_s
        self._known: dict[str, tuple[Path, Process]] = {}
        """The newest attempt of each slot whose shim was found, and its shim.

        What was found once is asked of the kernel alone: the training can write its attempt's files, and they may hang.
        """

    def launch(self, slot: str, folder: Path) -> None:
        """See `Launcher.launch`. The shim's first process ends immediately and is reaped here.

        The shim keeps its standard output open until it has reported, so this waits for its end of file.
        """
        message = self._start_shim(slot, folder, lambda: self.kill_all(slot, folder))
        if read_shim(folder) is None:
            self.kill_all(slot, folder)  # a training that did start would run unsupervised and hold the lock
            raise LaunchError(f"{slot}: {read_start_error(folder) or message or NO_MESSAGE}")
        self._find_shims(slot, folder)

    def stand_by(self, slot: str, folder: Path) -> None:
        """See `Launcher.stand_by`."""
        message = self._start_shim(slot, standby.folder_of(folder), lambda: self.dismiss(slot, folder))
        if not standby.waits(folder):
            raise LaunchError(standby.refused(folder) or message or NO_MESSAGE)

    def go(self, slot: str, folder: Path) -> str | None:
        """See `Launcher.go`."""
        refused = standby.go(folder, self._limit_s)
        self._find_shims(slot, folder)
        return refused

    def dismiss(self, slot: str, folder: Path) -> None:
        """See `Launcher.dismiss`."""
        if not standby.end(folder) and not standby.going(folder):
            for process in _shims_by_command(standby.folder_of(folder.resolve()), shim.AS_STANDBY):
                process_table.send(process, signal.SIGKILL)

    def find_shim(self, slot: str, folder: Path) -> Process | None:
        """See `Launcher.find_shim`."""
        return next(iter(self._find_shims(slot, folder)), None)

    def find_unit(self, slot: str, folder: Path) -> str | None:
        """See `Launcher.find_unit`: shims started here have no units."""
        return None

    def _start_shim(self, slot: str, folder: Path, give_up: Callable[[], None]) -> str:
        """Start a shim on a folder; return what it printed before it closed its standard output.

        The exit status of its first process is not used: that process may be killed after it has forked.
        """
        env = {name: value for name, value in os.environ.items() if name not in NOT_FOR_TRAININGS}
        try:
            process = start(
                (self._python, "-I", "-S", str(folder / SHIM_PROGRAM), *self.arguments, str(folder)),
                stdout=PIPE,
                stderr=STDOUT,
                new_session=True,
                cwd="/",
                env=env,
            )
        except OSError as error:
            raise LaunchError(f"{slot}: the shim could not be started: {error}") from error
        output = self._read_report(slot, folder, process)
        if not output.complete:
            process.kill()
            give_up()
            process.end()
            raise SilentShimError(f"{slot}: the shim did not report within {self._limit_s:.0f} s")
        return output.stdout.decode(errors="backslashreplace").strip()

    def _read_report(self, slot: str, folder: Path, process: Child) -> Output:
        """Return what a shim printed until it has reported; its first process ends then."""
        return read_output(process, RunningLimit(self._limit_s), MESSAGE_LIMIT_BYTES)

    def signal(self, slot: str, folder: Path, signal_number: int) -> bool:
        """See `Launcher.signal`."""
        return any(process_table.send(process, signal_number) for process in self._find_shims(slot, folder))

    def kill_all(self, slot: str, folder: Path) -> None:
        """See `Launcher.kill_all`. The tree first: without its shim it is known by less."""
        for _ in range(KILL_ROUNDS):  # repeated, since a process may have forked in between
            shims = self._find_shims(slot, folder)
            members = [*self._list_members(slot, folder, shims), *self._list_starting(slot, folder)]
            reached = [process for process in members if process_table.send(process, signal.SIGKILL)]
            if any(process.state != "D" for process in reached):
                continue
            # No process of the tree is left that a signal can end.
            if sum(process_table.send(process, signal.SIGKILL) for process in shims) == 0:
                break

    def alive(self, slot: str, folder: Path) -> bool:
        """See `Launcher.alive`. Counts orphans of a killed shim, and a shim that has not reported yet."""
        shims = self._find_shims(slot, folder)
        return bool(shims or self._list_starting(slot, folder) or self._list_members(slot, folder, shims))

    def _find_shims(self, slot: str, folder: Path) -> list[Process]:
        """Return the running shims of the attempt, including one that has not reported yet."""
        known = self._find_known(slot, folder)
        if known is not None:
            now = process_table.read_living(known)
            return [] if now is None else [now]
        found = _find_shims(folder)
        if found:
            self._known[slot] = (folder, found[0])
        return found

    def _find_known(self, slot: str, folder: Path) -> Process | None:
        """Return the shim that was found for this attempt, also once it has ended; None where it is not known."""
        at, known = self._known.get(slot, (None, None))
        return known if at == folder else None

    def _list_starting(self, slot: str, folder: Path) -> list[Process]:
        """Return the processes that are about to become the attempt's shim; none of one whose shim was found."""
        return [] if self._find_known(slot, folder) is not None else _list_starting(folder)

    def _list_members(self, slot: str, folder: Path, shims: list[Process]) -> list[Process]:
        """Return the attempt's running processes without its shim.

        These are the shim's descendants, since it adopts orphans; if the shim was killed, the processes of its session
        and those that were launched with the attempt's environment.
        """
        if shims:
            processes = process_table.read_processes()
            return [below for process in shims for below in process_table.descendants(process.pid, processes)]
        processes = [process for process in process_table.read_processes() if not process.dead]
        left = {process.pid: process for process in _list_marked(folder, processes)}
        session = self._find_session(slot, folder)
        if session is not None:
            left.update((process.pid, process) for process in _list_session(session, processes))
        return list(left.values())

    def _find_session(self, slot: str, folder: Path) -> int | None:
        """Return the pid of the attempt's shim, which is the number of its session; None where it is not known."""
        known = self._find_known(slot, folder)
        if known is not None:
            return known.pid
        note = read_shim(folder)
        return None if note is None or note.boot_id != process_table.boot_id() else note.pid


def _find_shims(folder: Path) -> list[Process]:
    running = _shims_by_command(folder)
    if len(running) == 1:
        return running  # and its folder, which may hang, was not asked
    living = living_shim(folder)
    if living is not None:
        return [living]
    resolved = folder.resolve()
    running = running or (_shims_by_command(resolved) if resolved != folder else [])
    promoted = _shims_by_command(standby.folder_of(resolved), shim.AS_STANDBY) if standby.going(folder) else []
    return [*running, *promoted]


def _list_session(session: int, processes: Sequence[Process]) -> list[Process]:
    """Return the running processes that a shim has left, whose session has its pid as its number."""
    if any(process.pid == session for process in processes):
        return []  # the pid was reused, which the kernel does only when no process has it as its session
    return [process for process in processes if process.session == session]


def _list_marked(folder: Path, processes: Sequence[Process]) -> list[Process]:
    """Return the running processes of this user that were started in the environment of an attempt.

    What a user's shell runs in a copy of that environment is none of them: its session has another leader.
    """
    # The folder may hang: it is compared as it is written, and not looked at.
    run = str(folder / names.RUN)
    if os.environ.get(names.ENV_FOLDER) == run:
        return []  # started by that training: this process, and each that it starts, has the environment too
    passed_over, running = list_own_ancestors(), {process.pid for process in processes}
    mark = os.fsencode(f"{names.ENV_FOLDER}={run}")
    asked = [process for process in processes if process.pid not in passed_over]
    words = read_words(asked, "environ")
    marked = {process.pid: process for process in asked if mark in words[process.pid]}
    return [process for process in marked.values() if process.session in marked or process.session not in running]


def _list_starting(folder: Path) -> list[Process]:
    """Return the processes that are about to become the attempt's shim: before their own session, and before exec."""
    command = [os.fsencode(folder / SHIM_PROGRAM), os.fsencode(folder)]
    processes = process_table.read_processes()
    words = read_words(processes, "cmdline")
    return [item for item in processes if words[item.pid][-2:-1] == command[1:] and command[0] in words[item.pid]]


def _shims_by_command(folder: Path, program: str = shim.AS_MODULE) -> list[Process]:
    """Return running shims by their command line: session leaders of this user for which it ends with the folder."""
    name = os.fsencode(folder)
    leaders = [process for process in process_table.read_processes() if process.pid == process.session]
    words = read_words(leaders, "cmdline")
    return [item for item in leaders if words[item.pid][-2:-1] == [name] and program.encode() in words[item.pid]]
