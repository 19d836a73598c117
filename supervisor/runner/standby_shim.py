"""The shim of a standby: starts an interpreter that imports the slow modules, and waits for its command.

Run by shim.py on a folder `standby-NUMBER` (see core/attempt_files.py). On `go` it becomes the attempt's shim and its
interpreter the training; otherwise it ends without claim, lock or recorder. The interpreter is the job's command,
stopped by the agent's sitecustomize before its program begins; a probe first checks that it does stop. Imports only
the standard library, as the shim.
"""

# ruff: noqa: PTH104, PTH108, PTH118, PTH123, SIM105 - as in shim.py: memory for life

from __future__ import annotations

import json
import os
import select
import signal
import time

TYPE_CHECKING = False  # typing is memory for life
if TYPE_CHECKING:
    from supervisor.runner import priority, process_table, shim
    from supervisor.runner.interpreter import RefusedError, find, mark
    from supervisor.runner.shim_files import RUN
else:
    import priority
    import process_table
    import shim
    from interpreter import RefusedError, find, mark
    from shim_files import RUN

ENV_STANDBY = "ROCM_SUPERVISOR_STANDBY"
OURS = "ROCM_SUPERVISOR_"
MAY_DIFFER = ("ROCM_SUPERVISOR_RESUME_FROM", "ROCM_SUPERVISOR_RESUME_STEPS", "ROCM_SUPERVISOR_MEAN_FAULT_S")
"""Variables that are not read before the program begins, so they may be set with the `go` command."""
PROBE_LIMIT_S = 30.0
ANSWER_LIMIT_S = 5.0


def wait(folder: str) -> int:
    """Wait in `folder`, then run as the shim of its attempt; return the exit status."""
    umask = os.umask(0o007)
    try:
        task = _read_json(os.path.join(folder, "standby.json"))
        fifo = _make_fifo(folder)
        spare = Spare(folder, task, umask)
    except (RefusedError, shim.StartError, OSError, KeyError) as error:
        _write_refusal(folder, str(error))
        return shim.complain(str(error), shim.START_FAILED)
    shim.let_go()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, shim.WATCHED)  # any of them ends it, and with it its interpreter
    try:
        if not _wait_for_command(folder, task, fifo, spare):
            spare.end()
            return 0
        signal.pthread_sigmask(signal.SIG_BLOCK, shim.WATCHED)
        os.rename(os.path.join(folder, RUN, "door"), os.path.join(folder, RUN, "going"))
        os.close(fifo)
        spare.require_fit(str(task["folder"]))
    except (RefusedError, shim.StartError, OSError, ValueError, KeyError) as error:
        spare.end()
        _write_refusal(folder, str(error))
        return 0
    os.umask(umask)
    return shim.attempt(str(task["folder"]), spare.go)


def _wait_for_command(folder: str, task: dict[str, object], fifo: int, spare: Spare) -> bool:
    """Wait for the command; return whether it is `go`. Raises RefusedError if the interpreter ends or time is up."""
    poll = select.poll()
    before = _open_previous_shim(task)
    for number in (fifo, spare.hearing, *(() if before is None else (before,))):
        poll.register(number, select.POLLIN)
    began, alone_since = time.perf_counter(), None if before is not None else time.perf_counter()
    while True:
        left_s = None if alone_since is None else alone_since + float(str(task["alone_s"])) - time.perf_counter()
        if left_s is not None and left_s <= 0:
            raise RefusedError("it was not requested within its limit")
        for number, _ in poll.poll(None if left_s is None else left_s * 1000):
            if number == fifo:
                return os.read(fifo, 64).startswith(b"go")
            if number == before:
                poll.unregister(number)
                alone_since = time.perf_counter()
            elif number == spare.hearing:
                spare.receive_ready()
                _write_json(folder, "ready.json", {"imported_s": round(time.perf_counter() - began, 3)})


def _open_previous_shim(task: dict[str, object]) -> int | None:
    """Return a pidfd of the previous attempt's shim; None if it has ended."""
    after = task["after"]
    if not isinstance(after, dict):
        return None
    try:
        handle = os.pidfd_open(after["pid"])
    except OSError:
        return None
    process = process_table.read_process(after["pid"])
    if process is None or process.start_ticks != after["start_ticks"]:
        os.close(handle)
        return None
    return handle


# --- the interpreter ----------------------------------------------------------------------------------------------


class Spare:
    """The standby's interpreter: a child process that has not started its program."""

    def __init__(self, folder: str, task: dict[str, object], umask: int) -> None:
        """Start it. Raises RefusedError if its program would begin immediately, StartError or OSError."""
        launch = task["launch"]
        assert isinstance(launch, dict)
        self.folder, self.launch = folder, launch
        self.arguments: list[str] | None = None
        """The program's own arguments at the end of the command; None until it is ready."""
        env = {**os.environ, **launch["env"]}
        probe, self.files = find(launch["argv"], env, launch["cwd"])
        self.marks = [mark(file) for file in self.files]
        _probe_agent(folder, {**launch, "argv": probe}, umask)
        reading, self.saying = os.pipe()
        self.hearing, writing = os.pipe()
        for number in (reading, writing):
            os.set_inheritable(number, True)  # noqa: FBT003 - its signature
        theirs = {**launch, "env": {**launch["env"], ENV_STANDBY: f"{reading} {writing}"}}
        self.pid = shim.spawn(
            folder, lambda output, complaints: self._become_interpreter(theirs, output, complaints, umask)
        )
        os.close(reading)
        os.close(writing)
        self.rest = b""
        self._send_message({"modules": task["modules"], "folder": os.path.join(folder, RUN)})

    def _become_interpreter(self, launch: dict[str, object], output: int, complaints: int, umask: int) -> None:
        os.close(self.saying)
        os.close(self.hearing)
        priority.lower()
        shim.become_training(launch, output, complaints, umask)

    def receive_ready(self) -> None:
        """Receive that it is ready. Raises RefusedError if it is not and will not be."""
        ready = self._receive_message(PROBE_LIMIT_S)["ready"]
        self.arguments = [str(item) for item in ready] if isinstance(ready, list) else []
        argv = self.launch["argv"]
        if argv[len(argv) - len(self.arguments) :] != self.arguments:
            raise RefusedError("its arguments differ from the command's")

    def require_fit(self, attempt: str) -> None:
        """Check that the attempt's launch is the one that was prepared. Raises RefusedError with the difference."""
        if self.arguments is None:
            raise RefusedError("it had not finished its imports")
        launch = shim.read_launch(attempt)
        _require_same_launch(self.launch, launch, len(self.arguments))
        if _read_content(self.folder, "remedies.json") != _read_content(attempt, "remedies.json"):
            raise RefusedError("the remedies differ")
        if [mark(file) for file in self.files] != self.marks:
            raise RefusedError("the interpreter or the program has changed")
        argv = launch["argv"]
        assert isinstance(argv, list)
        self._send_message({"arguments": argv[len(self.launch["argv"]) - len(self.arguments) :]})
        self._receive_message(ANSWER_LIMIT_S)

    def go(self, folder: str, launch: dict[str, object], _umask: int) -> int:
        """Make it the training of the attempt in `folder`; return its pid."""
        shim.make_room(folder)
        os.rename(os.path.join(self.folder, RUN, "output.log"), os.path.join(folder, RUN, "output.log"))
        priority.give_back(self.pid)
        env = launch["env"]
        assert isinstance(env, dict)
        ours = {name: text for name, text in env.items() if name.startswith(OURS)}
        self._send_message({"env": ours, "folder": os.path.join(folder, RUN)})
        os.close(self.saying)
        os.close(self.hearing)
        return self.pid

    def end(self) -> None:
        """Kill it; no work is lost."""
        os.kill(self.pid, signal.SIGKILL)  # a child that is not reaped: its pid is not reused
        os.waitpid(self.pid, 0)

    def _send_message(self, message: dict[str, object]) -> None:
        try:
            os.write(self.saying, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise RefusedError("it has ended") from None

    def _receive_message(self, limit_s: float) -> dict[str, object]:
        poll, until = select.poll(), time.perf_counter() + limit_s
        poll.register(self.hearing, select.POLLIN)
        while b"\n" not in self.rest:
            if not poll.poll(max(0.0, until - time.perf_counter()) * 1000):
                raise RefusedError(f"it did not answer within {limit_s:.0f} s")
            more = os.read(self.hearing, 65536)
            if not more:
                raise RefusedError("it has ended")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        message = json.loads(line)
        if "refused" in message:
            raise RefusedError(message["refused"])
        return dict(message)


def _probe_agent(folder: str, launch: dict[str, object], umask: int) -> None:
    """Check that the interpreter loads the agent's sitecustomize; otherwise it would start a second training."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # noqa: FBT003 - its signature
    env = launch["env"]
    assert isinstance(env, dict)
    theirs = {**launch, "env": {**env, ENV_STANDBY: f"probe {writing}"}}
    pid = shim.spawn(folder, lambda output, complaints: shim.become_training(theirs, output, complaints, umask))
    os.close(writing)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    answered = poll.poll(PROBE_LIMIT_S * 1000) and os.read(reading, 16) == b"here"
    os.close(reading)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not answered:
        raise RefusedError("its interpreter does not load the agent (check for the options -I, -E or -S)")


def _require_same_launch(stood_by: dict[str, object], launch: dict[str, object], own: int) -> None:
    """Raise RefusedError if something differs that imports or Python's startup may have read."""
    if stood_by["cwd"] != launch["cwd"]:
        raise RefusedError("the working directory differs")
    before, now = stood_by["argv"], launch["argv"]
    assert isinstance(before, list)
    assert isinstance(now, list)
    up_to = len(before) - own
    if before[:up_to] != now[:up_to]:
        raise RefusedError("the command differs")
    env, given = stood_by["env"], launch["env"]
    assert isinstance(env, dict)
    assert isinstance(given, dict)
    for name in sorted(env.keys() | given.keys()):
        if name not in MAY_DIFFER and env.get(name) != given.get(name):
            raise RefusedError(f"the variable {name} differs")


# --- files --------------------------------------------------------------------------------------------------------


def _make_fifo(folder: str) -> int:
    """Create the named pipe; it is also opened for writing here, so that it has no end of file."""
    path = os.path.join(folder, RUN, "door")
    os.mkfifo(path, 0o660)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _write_refusal(folder: str, why: str) -> None:
    """Write refused.json, and remove the files that mark a waiting standby."""
    try:
        _write_json(folder, "refused.json", {"why": why[:500]})
    except OSError:
        pass  # that no standby waits is visible without it
    for name in ("door", "going"):
        try:
            os.unlink(os.path.join(folder, RUN, name))
        except OSError:
            pass


def _read_json(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError) as error:
        raise RefusedError(f"{path}: {error}") from error


def _read_content(folder: str, name: str) -> bytes | None:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write_json(folder: str, name: str, facts: dict[str, object]) -> None:
    path = os.path.join(folder, RUN, name)
    with open(path + ".tmp", "wb") as file:
        file.write(json.dumps({"version": 1, **facts}).encode() + b"\n")
    os.rename(path + ".tmp", path)
