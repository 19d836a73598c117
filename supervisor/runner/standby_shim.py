"""The shim before its attempt: has an interpreter import what takes long, and waits for the word; it decides nothing.

Run by shim.py on a folder `standby-NUMBER` (see core/attempt_files.py). With the word it is the attempt's shim
like any other, its interpreter the training; without it nothing ever ran: no claim, no lock, no recorder. The
interpreter is the command itself, stopped by the agent's sitecustomize before its program begins, and a probe makes
sure of that first. Standard library alone, as the shim.
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
    from supervisor.runner import priority, shim
    from supervisor.runner.interpreter import RefusedError, find, mark
else:
    import priority
    import shim
    from interpreter import RefusedError, find, mark

ENV_STANDBY = "ROCM_SUPERVISOR_STANDBY"
OURS = "ROCM_SUPERVISOR_"
MAY_DIFFER = ("ROCM_SUPERVISOR_RESUME_FROM", "ROCM_SUPERVISOR_RESUME_STEPS", "ROCM_SUPERVISOR_MEAN_FAULT_S")
"""Variables that nothing reads before the program begins: known with the word alone."""
PROBE_LIMIT_S = 30.0
ANSWER_LIMIT_S = 5.0


def wait(folder: str) -> int:
    """Stand by in `folder`, then be the shim of its attempt; return the exit status."""
    umask = os.umask(0o007)
    try:
        task = _read(os.path.join(folder, "standby.json"))
        door = _open_door(folder)
        spare = Spare(folder, task, umask)
    except (RefusedError, shim.StartError, OSError, KeyError) as error:
        _refuse(folder, str(error))
        return shim.complain(str(error), shim.START_FAILED)
    shim.let_go()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, shim.WATCHED)  # any of them ends it, and with it its interpreter
    try:
        if not _told_to_go(folder, task, door, spare):
            spare.end()
            return 0
        signal.pthread_sigmask(signal.SIG_BLOCK, shim.WATCHED)
        os.rename(os.path.join(folder, shim.RUN, "door"), os.path.join(folder, shim.RUN, "going"))
        os.close(door)
        spare.fit(str(task["folder"]))
    except (RefusedError, shim.StartError, OSError, ValueError, KeyError) as error:
        spare.end()
        _refuse(folder, str(error))
        return 0
    os.umask(umask)
    return shim.attempt(str(task["folder"]), spare.go)


def _told_to_go(folder: str, task: dict[str, object], door: int, spare: Spare) -> bool:
    """Wait for the word; raise RefusedError where there is nothing more to wait with, or for."""
    poll = select.poll()
    before = _before(task)
    for number in (door, spare.hearing, *(() if before is None else (before,))):
        poll.register(number, select.POLLIN)
    began, alone_since = time.perf_counter(), None if before is not None else time.perf_counter()
    while True:
        left_s = None if alone_since is None else alone_since + float(str(task["alone_s"])) - time.perf_counter()
        if left_s is not None and left_s <= 0:
            raise RefusedError("it was not requested within its limit")
        for number, _ in poll.poll(None if left_s is None else left_s * 1000):
            if number == door:
                return os.read(door, 64).startswith(b"go")
            if number == before:
                poll.unregister(number)
                alone_since = time.perf_counter()
            elif number == spare.hearing:
                spare.hear_ready()
                _write(folder, "ready.json", {"imported_s": round(time.perf_counter() - began, 3)})


def _before(task: dict[str, object]) -> int | None:
    """Return a pidfd of the shim of the attempt before; None where it is gone."""
    after = task["after"]
    if not isinstance(after, dict):
        return None
    try:
        handle = os.pidfd_open(after["pid"])
    except OSError:
        return None
    process = shim.read_process(after["pid"])
    if process is None or process.start_ticks != after["start_ticks"]:
        os.close(handle)
        return None
    return handle


# --- the interpreter ----------------------------------------------------------------------------------------------


class Spare:
    """The interpreter that stands by: a child that has not come to its program."""

    def __init__(self, folder: str, task: dict[str, object], umask: int) -> None:
        """Start it; raise RefusedError where its program would begin at once, StartError or OSError."""
        launch = task["launch"]
        assert isinstance(launch, dict)
        self.folder, self.launch = folder, launch
        self.arguments: list[str] | None = None
        """The words of the command that are the program's own; None until it is ready."""
        env = {**os.environ, **launch["env"]}
        probe, self.files = find(launch["argv"], env, launch["cwd"])
        self.marks = [mark(file) for file in self.files]
        _probe(folder, {**launch, "argv": probe}, umask)
        reading, self.saying = os.pipe()
        self.hearing, writing = os.pipe()
        for number in (reading, writing):
            os.set_inheritable(number, True)  # noqa: FBT003 - its signature
        theirs = {**launch, "env": {**launch["env"], ENV_STANDBY: f"{reading} {writing}"}}
        self.pid = shim.spawn(folder, lambda output, complaints: self._become(theirs, output, complaints, umask))
        os.close(reading)
        os.close(writing)
        self.rest = b""
        self._say({"modules": task["modules"], "folder": os.path.join(folder, shim.RUN)})

    def _become(self, launch: dict[str, object], output: int, complaints: int, umask: int) -> None:
        os.close(self.saying)
        os.close(self.hearing)
        priority.lower()
        shim.become_training(launch, output, complaints, umask)

    def hear_ready(self) -> None:
        """Take in that it is ready; raise RefusedError where it is not and never will be."""
        ready = self._hear(PROBE_LIMIT_S)["ready"]
        self.arguments = [str(item) for item in ready] if isinstance(ready, list) else []
        argv = self.launch["argv"]
        if argv[len(argv) - len(self.arguments) :] != self.arguments:
            raise RefusedError("its arguments differ from the command's")

    def fit(self, attempt: str) -> None:
        """Make sure that what is to be launched is what stands by; raise RefusedError with the difference."""
        if self.arguments is None:
            raise RefusedError("it had not finished its imports")
        launch = shim.read_launch(attempt)
        _compare(self.launch, launch, len(self.arguments))
        if _content(self.folder, "remedies.json") != _content(attempt, "remedies.json"):
            raise RefusedError("the remedies differ")
        if [mark(file) for file in self.files] != self.marks:
            raise RefusedError("the interpreter or the program has changed")
        argv = launch["argv"]
        assert isinstance(argv, list)
        self._say({"arguments": argv[len(self.launch["argv"]) - len(self.arguments) :]})
        self._hear(ANSWER_LIMIT_S)

    def go(self, folder: str, launch: dict[str, object], _umask: int) -> int:
        """Let it be the training of the attempt in `folder`; return its pid."""
        shim.make_room(folder)
        os.rename(os.path.join(self.folder, shim.RUN, "output.log"), os.path.join(folder, shim.RUN, "output.log"))
        priority.give_back(self.pid)
        env = launch["env"]
        assert isinstance(env, dict)
        ours = {name: text for name, text in env.items() if name.startswith(OURS)}
        self._say({"env": ours, "folder": os.path.join(folder, shim.RUN)})
        os.close(self.saying)
        os.close(self.hearing)
        return self.pid

    def end(self) -> None:
        """End it; it has done nothing that could be lost."""
        os.kill(self.pid, signal.SIGKILL)  # our own child, not reaped: the number is its own
        os.waitpid(self.pid, 0)

    def _say(self, message: dict[str, object]) -> None:
        try:
            os.write(self.saying, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise RefusedError("it has ended") from None

    def _hear(self, limit_s: float) -> dict[str, object]:
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
        said = json.loads(line)
        if "refused" in said:
            raise RefusedError(said["refused"])
        return dict(said)


def _probe(folder: str, launch: dict[str, object], umask: int) -> None:
    """Make sure that the agent's sitecustomize is reached: without it the program would begin, a second training."""
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


def _compare(stood_by: dict[str, object], launch: dict[str, object], own: int) -> None:
    """Raise RefusedError where something differs that importing or Python's start may have read."""
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


def _open_door(folder: str) -> int:
    """Make the named pipe; it stays open for writing here, too, so that it never ends."""
    path = os.path.join(folder, shim.RUN, "door")
    os.mkfifo(path, 0o660)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _refuse(folder: str, why: str) -> None:
    """Leave word of why, and take away what says that somebody waits."""
    try:
        _write(folder, "refused.json", {"why": why[:500]})
    except OSError:
        pass  # that nobody waits is seen all the same
    for name in ("door", "going"):
        try:
            os.unlink(os.path.join(folder, shim.RUN, name))
        except OSError:
            pass


def _read(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError) as error:
        raise RefusedError(f"{path}: {error}") from error


def _content(folder: str, name: str) -> bytes | None:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(folder: str, name: str, facts: dict[str, object]) -> None:
    path = os.path.join(folder, shim.RUN, name)
    with open(path + ".tmp", "wb") as file:
        file.write(json.dumps({"version": 1, **facts}).encode() + b"\n")
    os.rename(path + ".tmp", path)
