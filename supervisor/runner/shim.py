"""The shim: starts one training, stays its parent until it ends and records how it ended.

    python -I -S shim.py [--detach | --held PID] FOLDER

It outlives the daemon, so it is small and imports only the standard library; the constants of core/attempt_files.py are
repeated here (a test compares them). Until shim.json or exit.json is written, error messages go to the standard output
of the process that started it; afterwards it keeps no inherited descriptor open.

SIGTERM  ask the training to save, at most save_s, then SIGTERM to its tree      SIGQUIT  SIGKILL the tree until gone
SIGINT   SIGTERM to the tree at once                                             SIGUSR1  stacks of every process
SIGCONT  SIGCONT to what a signal has stopped
"""

# A pathlib or contextlib here would be memory that every attempt pays for as long as it runs.
# ruff: noqa: PTH103, PTH110, PTH116, PTH118, PTH119, PTH120, PTH123, SIM105

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable

TYPE_CHECKING = False  # typing is memory for life
if TYPE_CHECKING:
    from resource import struct_rusage
    from types import ModuleType

    from supervisor.runner.storage_look import StorageLook
if TYPE_CHECKING or __package__:
    from supervisor.runner.process_table import (
        Process,
        boot_id,
        catches,
        descendants,
        read_inner_pid,
        read_process,
        read_processes,
        send,
    )
    from supervisor.runner.shim_files import NO_LINK, RUN, VERSION, Promise, Recorder
else:
    if __name__ == "__main__":  # isolated: Python has not put this folder on the path
        sys.path.append(os.path.dirname(os.path.realpath(__file__)))
    from process_table import Process, boot_id, catches, descendants, read_inner_pid, read_process, read_processes, send
    from shim_files import NO_LINK, RUN, VERSION, Promise, Recorder

CLAIMED_BY_ANOTHER = 75
"""Exit status (EX_TEMPFAIL) of a shim that refuses to be the second one."""
START_FAILED = 1

STACKS_SIGNAL = signal.SIGRTMIN + 7

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
START_ASKED = "start_asked"
"""Present once an attempt that is over was to be started again, as by `systemctl start` of its unit."""
LOOK_EVERY_S = 3.0
"""Between two looks at who in the tree waits for a file system."""
KEEP_TRIES, KEEP_EVERY_S = 60, 0.5
"""How often, how far apart the end of an attempt, which the shim alone saw, is written to a disk that refuses it."""
DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
LOCK_TRIES, LOCK_EVERY_S = 50, 0.02
"""How often, and how far apart, the lock of a shim that is ending is tried."""
AS_MODULE = "import sys; sys.path.append(sys.argv[1]); import shim; sys.exit(shim.attempt(sys.argv[2]))"
"""A module's byte code is read from its cache: a script is compiled each time, which costs a megabyte for life."""
AS_STANDBY = "import sys; sys.path.append(sys.argv[1]); import standby_shim; sys.exit(standby_shim.wait(sys.argv[2]))"
STANDBY_FOLDER = "standby-"
"""Prefix of the folder of a standby's shim."""
WATCHED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGCONT,
    signal.SIGHUP,
    signal.SIGCHLD,
)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
LEFTOVER_GRACE_S = 2.0
CLAIM_S = 600.0
"""How long what a command has left in the background may take until it trains; then it is ended as any leftover is.

So long a further training may take to make a step, and claim the recorder, after the one that had it has ended."""
ANSWER_PAUSE_S = 0.02
AWAY_S = 1.0
"""From one look at the clock to the next: a busy machine is late by less."""
KILL_PAUSE_S, KILL_PAUSE_LIMIT_S = 0.01, 0.5
NS = 1_000_000_000


class StartError(Exception):
    """The training could not be started; the message says why."""


# --- files --------------------------------------------------------------------------------------------------------


def read_launch(folder: str) -> dict[str, object]:
    """Return launch.json. Raises StartError if it is invalid."""
    path = os.path.join(folder, "launch.json")
    try:
        with open(path, "rb") as file:
            launch = json.load(file)
        argv, env = launch["argv"], launch["env"]
        is_valid = argv and all(isinstance(item, str) for item in (launch["cwd"], *argv, *env, *env.values()))
        float(launch["save_s"])
        version = int(launch.get("version", VERSION))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StartError(f"{path}: {type(error).__name__}: {error}") from error
    if not is_valid or not isinstance(argv, list):
        raise StartError(f"{path}: argv, cwd and env must be text")
    if version > VERSION:
        raise StartError(f"{path} has version {version}, and this shim reads up to {VERSION}: restart the daemon")
    return dict(launch)


def take_lock(folder: str) -> None:
    """Hold the job's lock until this process ends. Raises BlockingIOError if another process keeps it.

    The kernel takes a process's memory, by which it is known for a shim, a moment before it closes its files.
    """
    lock = os.open(os.path.join(os.path.dirname(folder), "lock"), os.O_RDONLY | NO_LINK)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_EVERY_S)
        else:
            return
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- start --------------------------------------------------------------------------------------------------------


def start(folder: str, launch: dict[str, object], umask: int) -> int:
    """Start the command of launch.json in its own process group and return its pid; raise StartError."""
    make_room(folder)
    return spawn(folder, lambda output, writing: become_training(launch, output, writing, umask))


def make_room(folder: str) -> None:
    """Create the files and folders that the agent writes."""
    os.close(os.open(os.path.join(folder, RUN, "agent.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o660))
    os.makedirs(os.path.join(folder, RUN, "stacks"), 0o2770, exist_ok=True)


def spawn(folder: str, become: Callable[[int, int], None]) -> int:
    """Fork; `become(output, errors)` execs a program in the child. Return its pid; raise StartError with its error."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    output = os.open(os.path.join(folder, RUN, "output.log"), flags, 0o660)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        become(output, writing)
    os.close(writing)
    os.close(output)
    with open(reading, "rb") as pipe:
        complaint = pipe.read()  # ends when exec closes the other side
    if complaint:
        os.waitpid(pid, 0)
        raise StartError(complaint.decode(errors="replace"))
    return pid


def become_training(launch: dict[str, object], output: int, complaints: int, umask: int) -> None:
    """Exec the training in this forked process; does not return."""
    argv = [str(arg) for arg in launch["argv"]]  # type: ignore[attr-defined]  # read_launch looked at it
    what = f"cwd {launch['cwd']!r} of the job"
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(umask)
        os.chdir(str(launch["cwd"]))
        what = f"command {argv[0]!r} of the job"
        os.execvpe(argv[0], argv, {**os.environ, **launch["env"]})  # type: ignore[dict-item]  # noqa: S606 - as above
    except OSError as error:
        reason = _explain_exec(error, launch, what)
        os.write(complaints, f"{what}: {reason}".encode(errors="backslashreplace"))
    except ValueError as error:  # a NUL, or "=" in a variable's name
        os.write(complaints, f"{what}: {error}".encode(errors="backslashreplace"))
    finally:
        os._exit(127)


def _explain_exec(error: OSError, launch: dict[str, object], what: str) -> str:
    """Return why the command could not be executed, or its folder not be entered."""
    try:
        import exec_failure  # type: ignore[import-not-found]  # noqa: PLC0415 - in this folder; few attempts need it

        if what.startswith("cwd"):
            return str(exec_failure.explain_folder(error, str(launch["cwd"])))
        env = {**os.environ, **launch["env"]}  # type: ignore[dict-item]  # read_launch looked at it
        program = str(launch["argv"][0])  # type: ignore[index]  # as above
        return str(exec_failure.explain_program(error, program, env.get("PATH", os.defpath)))
    except (ImportError, OSError):
        return str(error.strerror)  # the copy of the code is gone


# --- watch --------------------------------------------------------------------------------------------------------


class Watch:
    """Waits for signals and for the end of a started training and its children."""

    def __init__(self, folder: str, recorder: Recorder, training: int, launch: dict[str, object]) -> None:
        self.folder, self.recorder, self.training = folder, recorder, training
        self.save_ns = int(float(str(launch["save_s"])) * NS)
        self.command = str(launch["argv"][0])  # type: ignore[index]  # read_launch looked at it
        self.end: dict[str, object] = {}
        self.ended_before: dict[str, object] = {}
        """How the command ended that has left the training in the background, or that which was taken for it."""
        self.claim_until: int | None = None
        self.is_asked_to_end = False
        self.leftovers = self.in_background = 0
        self.save_until: int | None = None
        self.checked_at = time.monotonic_ns()
        self.kill_at: int | None = None
        self.kill_pause_ns = int(KILL_PAUSE_S * NS)
        self.storage, self.look_at = self._begin_looks(folder), time.monotonic_ns()

    @staticmethod
    def _begin_looks(folder: str) -> StorageLook | None:
        """Return what shows who waits for a file system; None where the daemon, whose folder it is, sees it itself."""
        try:
            if os.stat(folder).st_uid in (0, os.geteuid()):
                return None
            # Here: the program that begins has no path to the runner's folder.
            import storage_look  # type: ignore[import-not-found] # noqa: PLC0415 - as the comment says

            looks: StorageLook = storage_look.StorageLook(os.getpid())
        except (OSError, ImportError):
            return None  # the training has begun: a hint is not worth its end
        return looks

    def run(self) -> dict[str, object]:
        """Return the facts for exit.json when no process of the attempt is left.

        The shim is a subreaper and inherits all orphans: when it has no child left, the complete tree has ended.
        """
        while self._reap():
            self._handle_signal(self._wait())
            self._check_deadlines()
        return {**self.end, "leftovers": self.leftovers, "in_background": self.in_background}

    def _reap(self) -> bool:
        known = bool(self.end)
        earlier: list[tuple[int, int, struct_rusage]] = []
        while True:
            try:
                ended = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False  # no child is left
            if ended[0] == 0:
                if self.end and not known:
                    self._look_behind()
                return True
            if self._take_end(*ended):
                # On a busy machine several have ended at one look, and the kernel does not give them in that order.
                for other in earlier:
                    self._take_end(*other)
            earlier.append(ended)

    def _take_end(self, pid: int, status: int, usage: struct_rusage) -> bool:
        """Take the end of a child for the training's; False where it was another's."""
        if pid != self.training and not self._was_left_behind(pid):
            return False
        self.ended_before = self.ended_before or self.end
        self.training = pid
        code = os.waitstatus_to_exitcode(status)
        self.end = {
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "error": None,
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "user_s": usage.ru_utime,
            "system_s": usage.ru_stime,
            **ended_now(),
        }
        return True

    def _may_go_on(self) -> bool:
        """Whether what the command has left may be its training: it ended with status 0, or that is waited for."""
        is_command_over = bool(self.end) and not self.ended_before and self.end["exit_code"] == 0
        return is_command_over or self.claim_until is not None

    def _was_left_behind(self, pid: int) -> bool:
        """Whether a child that has ended is the training; on a busy machine it has before its command was reaped."""
        if self._may_go_on() and pid == self.recorder.read_claim():
            return True
        return self._may_be_followed() and pid in _read_trainers(self.folder)

    def _may_be_followed(self) -> bool:
        """Whether a further training may be the attempt's, after one that ended well by itself."""
        return bool(self.end) and self.end["exit_code"] == 0 and not self.is_asked_to_end and self.kill_at is None

    def _look_behind(self) -> None:
        """Go on with a training that the command has left in the background; end whatever else it has left."""
        is_first, claimed = not self.ended_before, self.recorder.read_claim()
        found = None
        if self._may_go_on() and not self.is_asked_to_end:
            found = _find_background(self._list_tree, claimed, self.command)
        is_further = found is None and self._may_be_followed()
        if is_further:
            found = _find_further(self._list_tree, self.folder, self.command)
        if found is None:
            self._end_leftovers()
            return
        if is_first or self.end["exit_code"] != 0:
            self.ended_before = self.end
        if is_further or (is_first and not claimed):
            self.claim_until = time.monotonic_ns() + int(CLAIM_S * NS)
        self.training, self.end = found, {}

    def _wait(self) -> int:
        deadlines = [at for at in (self.kill_at, self.claim_until) if at is not None]
        if self.save_until is not None:
            deadlines.append(time.monotonic_ns() + int(ANSWER_PAUSE_S * NS))
        if self.storage is not None:
            deadlines.append(self.look_at)
        if not deadlines:
            return signal.sigwaitinfo(WATCHED).si_signo
        info = signal.sigtimedwait(WATCHED, max(0.0, (min(deadlines) - time.monotonic_ns()) / NS))
        return info.si_signo if info else 0

    def _handle_signal(self, number: int) -> None:
        self.is_asked_to_end |= number in ENDING
        if number == signal.SIGTERM:
            self._save_then_end()
        elif number == signal.SIGINT:
            self._end_tree()
        elif number == signal.SIGQUIT:
            self.save_until, self.kill_at = None, time.monotonic_ns()
        elif number == signal.SIGCONT:
            for process in self._list_tree():
                if process.state == "T" and not process.terminal:  # a terminal's job control is left to its user
                    send(process, signal.SIGCONT)
        elif number == signal.SIGUSR1:
            for process in self._list_tree():
                dump = os.path.join(self.folder, RUN, "stacks", f"{read_inner_pid(process.pid)}.txt")
                if os.path.exists(dump) and catches(process.pid, STACKS_SIGNAL):
                    send(process, STACKS_SIGNAL)

    def _check_deadlines(self) -> None:
        now = time.monotonic_ns()
        self._leave_out_pause(now)
        if self.storage is not None and now >= self.look_at:
            self.look_at = now + int(LOOK_EVERY_S * NS)
            self.storage.look()
        if self.save_until is not None and (now >= self.save_until or self.recorder.answered()):
            self._end_tree()
        if self.claim_until is not None and now >= self.claim_until:
            self.claim_until = None
            self._judge_background()
        if self.kill_at is not None and now >= self.kill_at:
            for process in self._list_tree():
                send(process, signal.SIGCONT, signal.SIGKILL)
            # Repeated, since a process may have forked in between; ever slower, since one may be in state D.
            self.kill_at = now + self.kill_pause_ns
            self.kill_pause_ns = min(2 * self.kill_pause_ns, int(KILL_PAUSE_LIMIT_S * NS))

    def _judge_background(self) -> None:
        """Go on with what has begun to train in the background; where nothing has, the attempt is over."""
        claimed = self.recorder.read_claim()
        found = _find_background(self._list_tree, claimed, self.command) if claimed else None
        if found is None:
            self.training, self.end = 0, self.ended_before
            self._end_leftovers()
        else:
            self.training = found

    def _save_then_end(self) -> None:
        if self.save_until is not None:
            return
        processes = self._list_tree()
        for process in processes:
            if process.state in "Tt":  # `t`: a tool reads it, and it would stay stopped after that
                send(process, signal.SIGCONT)  # a stopped process saves only when continued
        alive = {pid for process in processes for pid in (process.pid, read_inner_pid(process.pid))}
        if self.end or not self.recorder.ask_to_save(alive):
            self._end_tree()
        else:
            self.checked_at = time.monotonic_ns()
            self.save_until = self.checked_at + self.save_ns

    def _leave_out_pause(self, now: int) -> None:
        """Extend the time to save by one in which nothing ran, as of a virtual machine that was paused."""
        away, self.checked_at = now - self.checked_at, now
        if self.save_until is not None and away >= AWAY_S * NS:
            self.save_until += away

    def _end_tree(self) -> None:
        self.save_until = None
        for process in self._list_tree():
            send(process, signal.SIGTERM, signal.SIGCONT)  # a stopped process handles signals only when continued

    def _end_leftovers(self) -> None:
        left = self._list_tree()
        if left:  # a program that puts itself in the background may fork between two looks at its place in /proc
            left = max(left, self._list_tree(), key=len)
        self.leftovers, self.in_background = len(left), _count_apart(left) if left else 0
        self._end_tree()
        if self.kill_at is None:
            self.kill_at = time.monotonic_ns() + int(LEFTOVER_GRACE_S * NS)

    def _list_tree(self) -> list[Process]:
        return descendants(os.getpid(), read_processes())


def _find_background(list_tree: Callable[[], list[Process]], claimed: int, command: str) -> int | None:
    background = _import_background()
    return None if background is None else background.find_training(list_tree, os.getpid(), claimed, command)


def _find_further(list_tree: Callable[[], list[Process]], folder: str, command: str) -> int | None:
    background = _import_background()
    return None if background is None else background.find_further_training(list_tree, os.getpid(), folder, command)


def _read_trainers(folder: str) -> set[int]:
    background = _import_background()
    return set() if background is None else background.read_trainers(folder)


def _count_apart(tree: list[Process]) -> int:
    background = _import_background()
    return 0 if background is None else background.count_apart(tree)


def _import_background() -> ModuleType | None:
    try:
        import background  # type: ignore[import-not-found]  # noqa: PLC0415 - in this folder; few attempts need it
    except (ImportError, OSError):
        return None  # the copy of the code is gone
    module: ModuleType = background
    return module


def ended_now() -> dict[str, object]:
    """Return the time fields of exit.json."""
    return {"ended_unix_s": time.time_ns() / NS, "ended_monotonic_ns": time.monotonic_ns()}


# --- the program --------------------------------------------------------------------------------------------------


def attempt(folder: str, begin: Callable[[str, dict[str, object], int], int] = start) -> int:
    """Run the attempt in `folder` from start to exit.json; return the shim's own exit status.

    `begin(folder, launch, umask)` starts the training and returns its pid.
    """
    umask = os.umask(0o007)
    started = {"started_unix_s": time.time_ns() / NS}
    try:
        exit_file = Promise(folder, "exit.json")
    except FileExistsError:
        return refuse(folder)
    except OSError as error:
        return complain(f"{folder}: {error.strerror}", START_FAILED)
    try:
        watch = _start_training(folder, umask, started, begin)
    except (StartError, OSError) as error:
        second = isinstance(error, BlockingIOError)
        text = "another attempt of this job is still running: its shim holds the lock" if second else str(error)[:500]
        keep_end(exit_file, {"exit_code": None, "signal": None, "error": text, **started, **ended_now()})
        return complain(text, CLAIMED_BY_ANOTHER if second else START_FAILED)
    let_go()
    keep_end(exit_file, {**watch.run(), **started})
    return 0


def keep_end(exit_file: Promise, facts: dict[str, object]) -> None:
    """Write how the attempt ended, for some time again where the disk refuses it. Raises OSError."""
    for tried in range(1, KEEP_TRIES + 1):
        try:
            return exit_file.keep(facts, lasting=True)
        except OSError as error:
            if error.errno not in DISK_ERRORS or tried == KEEP_TRIES:
                raise
        time.sleep(KEEP_EVERY_S)
    return None


def refuse(folder: str) -> int:
    """Refuse an attempt that was started before; leave word for the daemon where it is over and wanted again."""
    path = os.path.join(folder, RUN, START_ASKED)
    try:
        if os.path.exists(os.path.join(folder, RUN, "exit.json")):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | NO_LINK, 0o660))
            os.utime(path)
            return complain(f"{folder}: this attempt is over; rocm-supervisord is asked to start the next", 0)
    except OSError:
        pass  # it is refused as one that still runs
    return complain(f"{folder}: this attempt has already been started; every attempt needs a new folder")


def _start_training(
    folder: str, umask: int, started: dict[str, float], begin: Callable[[str, dict[str, object], int], int]
) -> Watch:
    """Start the training and write shim.json. Raises StartError, OSError, or BlockingIOError for a second shim."""
    take_lock(folder)
    launch, shim_file, recorder = read_launch(folder), Promise(folder, "shim.json"), Recorder(folder)
    problem = recorder.make()
    training = begin(folder, launch, umask)
    try:
        shim_file.keep({**_read_identity(training), **started, "problem": problem}, lasting=False)
    except OSError:
        os.kill(training, signal.SIGKILL)  # without shim.json it could not be found again
        raise
    return Watch(folder, recorder, training, launch)


def _read_identity(training: int) -> dict[str, object]:
    own, child = read_process(os.getpid()), read_process(training)
    return {
        "pid": os.getpid(),
        "start_ticks": own.start_ticks if own else None,
        "boot_id": boot_id(),
        "training_pid": training,
        "training_start_ticks": child.start_ticks if child else None,
    }


def complain(text: str, status: int = CLAIMED_BY_ANOTHER) -> int:
    """Write an error message for the process that started the shim; return the exit status."""
    try:
        os.write(1, f"{text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # no reader
    return status


def let_go() -> None:
    """Close the inherited descriptors; the end of file tells the starter that the attempt has started."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


def _set_process(option: int, value: int) -> None:
    """Change an attribute of this process that survives exec (prctl(2)). Raises OSError."""
    import ctypes  # noqa: PLC0415 - half a megabyte that only this step needs, and exec gives back

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _end_with(holder: int) -> None:
    """Have the kernel send SIGQUIT, which ends the complete tree, once the process that holds this one is gone."""
    _set_process(PR_SET_PDEATHSIG, signal.SIGQUIT)
    if os.getppid() != holder:
        sys.exit(START_FAILED)  # it was gone before


def main(arguments: list[str]) -> None:
    """Start a new session, adopt orphans and exec the shim; with `--detach`, the first process returns.

    With `--held PID` the shim stays the child of that process, and ends with it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by some parents, and then no status could be had
    try:
        if arguments[:1] == ["--detach"] and os.fork():
            return
    except OSError as error:
        sys.exit(f"the shim could not be forked: {error}")
    if arguments[:1] == ["--held"]:
        _end_with(int(arguments[1]))
    folder = os.path.realpath(arguments[-1])  # the `current` of this moment
    if os.getsid(0) != os.getpid():
        try:
            os.setsid()
        except PermissionError:
            pass  # leader of a shell's process group: started manually, and ends with its terminal
    _set_process(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the training become its children
    # Resolve the folder's link `code`, so that later imports do not depend on it.
    here = os.path.dirname(os.path.realpath(__file__))
    program = AS_STANDBY if os.path.basename(folder).startswith(STANDBY_FOLDER) else AS_MODULE
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", program, here, folder])  # noqa: S606 - needs no shell


if __name__ == "__main__":
    main(sys.argv[1:])
