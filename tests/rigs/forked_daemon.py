"""Starts daemons as forks of one process that has made their imports: a start takes 0.7 s of processor time less.

Each daemon is a process in a session of its own, with the arguments, environment, working directory and output of its
start; only its imports are shared, and the table of messages that it would read with a training's first output. What
begins with the interpreter itself (LD_PRELOAD, PYTHONPATH, another installation) needs a start of the real command.
Calls of supervisorctl are forks of a second such process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DAEMON = "supervisor.daemon.main"
"""The module whose `main` rocm-supervisord calls."""
ROLES = "supervisor.daemon.roles.program"
"""What that imports for a part of a training on several nodes."""
FIRST_ANSWER = ("uvicorn.loops.asyncio", "uvicorn.lifespan.off", "anyio._backends._asyncio")
"""What a daemon imports when it is first asked for something."""
TABLE = "supervisor.sources.faults.training_table"
"""Has the table, which `training_grammar` reads once in a process."""
COMMAND = "supervisor.cli.main"
"""The module whose `main` supervisorctl calls."""
CALLED = tuple(
    f"supervisor.cli.{name}"
    for name in (
        "checkpoints",
        "history",
        "lifecycle.restart",
        "lifecycle.start",
        "lifecycle.stop",
        "logs",
        "reload",
        "remedies",
        "show",
        "status",
    )
)
"""What that imports for the commands that tests call most."""
IMPORTS = {DAEMON: (DAEMON, ROLES, *FIRST_ANSWER, TABLE), COMMAND: (COMMAND, *CALLED)}
"""By the module of a program, what the process imports that forks it."""
END_LIMIT_S = 10.0
REQUEST_BYTES = 1 << 17
"""More than an environment has."""


class ForkedDaemon:
    """A daemon that was forked; it is waited for and signalled as a `subprocess.Popen` is."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        """`ended` gives its exit status once it has ended."""
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            self._ended.setblocking(False)
            try:
                self._take()
            except BlockingIOError:
                return None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended; raise subprocess.TimeoutExpired where it has not by then."""
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                self._take()
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout or 0.0) from None
        assert self.returncode is not None
        return self.returncode

    def _take(self) -> None:
        status = self._ended.recv(64)
        self._ended.close()
        if not status:
            raise RuntimeError(f"the process that forked daemon {self.pid} has ended before it")
        self.returncode = int(status)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class _Prepared:
    """The process that has made the imports; it ends with the process that started it."""

    def __init__(self, program: str) -> None:
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), program, str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def fork(self, request: dict[str, Any], output: int, errors: int) -> ForkedDaemon:
        """Return a daemon that was started as `request` says and writes into these files."""
        ended, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._asking, [json.dumps(request).encode()], [theirs.fileno(), output, errors])
        pid = ended.recv(64)
        if not pid:
            raise RuntimeError(f"no daemon could be forked (status {self._process.poll()})")
        return ForkedDaemon(int(pid), ended)

    def end(self) -> None:
        """Let it end, and wait for it; one that is shared ends once all that share it have."""
        self._asking.close()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


_prepared: dict[tuple[int, str], _Prepared] = {}
"""Those of this process, by its pid and what they fork: a fork of this process starts its own, unless it is shared."""
_shared: dict[str, int] = {}
"""By what is forked, the process whose own is that of its forks too."""


def share(program: str = DAEMON) -> None:
    """Have the forks that this process makes from now on use its own: one import for all of them."""
    _shared[program] = os.getpid()
    _prepare(program)


def _prepare(program: str) -> _Prepared:
    owner = os.getpid()
    made = _prepared[owner, program] = _Prepared(program)
    atexit.register(lambda: made.end() if os.getpid() == owner else None)
    return made


def _find_prepared(program: str) -> _Prepared:
    return _prepared.get((_shared.get(program, os.getpid()), program)) or _prepare(program)


def is_forkable(env: Mapping[str, str]) -> bool:
    """Return whether none of these variables is read by the interpreter or the loader when they begin."""
    return not any(name.startswith(("LD_", "PYTHON")) for name in env)


def start_daemon(
    arguments: Sequence[str],
    log: int,
    program: str = DAEMON,
    place: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> ForkedDaemon:
    """Start `main` of the module `program`, which lies in `place` if it is not of the product, with these arguments.

    `env` adds to the environment of this process.
    """
    assert is_forkable(env or {})
    request = _describe([program, *arguments], program) | {"place": None if place is None else str(place)}
    request["environment"] |= env or {}
    return _find_prepared(DAEMON).fork(request, log, log)


def run_command(arguments: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run supervisorctl with these arguments, as `subprocess.run` does; raise where it has not ended by then."""
    words = ["rocm-supervisorctl", *arguments]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        command = _find_prepared(COMMAND).fork(_describe(words, COMMAND), output.fileno(), errors.fileno())
        try:
            status = command.wait(limit_s)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(words, status, output.read(), errors.read())


def _describe(words: list[str], program: str) -> dict[str, Any]:
    return {"program": program, "place": None, "words": words, "environment": {**os.environ}, "cwd": str(Path.cwd())}


def _serve(asked: socket.socket) -> dict[str, Any] | None:
    """Fork for each request and tell of each end; return the request in the fork, None where no more can come."""
    selector = selectors.DefaultSelector()
    selector.register(asked, selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for key, _ in selector.select():
            if key.fd != asked.fileno():
                selector.unregister(key.fd)
                os.close(key.fd)
                pid, ended = running.pop(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with ended:
                    _tell(ended, status)
                continue
            content, descriptors, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 3)
            if not content:
                return None
            ended, files = socket.socket(fileno=descriptors[0]), descriptors[1:]
            pid = os.fork()
            if pid == 0:
                selector.close()
                for other, (_, channel) in running.items():
                    os.close(other)
                    channel.close()
                ended.close()
                asked.close()
                _become(*files)
                request: dict[str, Any] = json.loads(content)
                return request
            for file in files:
                os.close(file)
            _tell(ended, pid)
            descriptor = os.pidfd_open(pid)
            running[descriptor] = pid, ended
            selector.register(descriptor, selectors.EVENT_READ)


def _tell(channel: socket.socket, number: int) -> None:
    try:
        channel.send(str(number).encode())
    except BrokenPipeError:
        return  # the test that started it has ended


def _become(output: int, errors: int) -> None:
    """Begin a session whose input is empty and whose output goes into these files."""
    os.setsid()
    empty = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((empty, output, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _run(request: dict[str, Any]) -> int:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["place"] is not None:
        sys.path.insert(0, request["place"])
    sys.argv = request["words"]
    return int(importlib.import_module(request["program"]).main())


def main(program: str, descriptor: int) -> int:
    """Make the imports of a program and serve the socket of this descriptor; in a fork, run it."""
    sys.path[0] = str(ROOT)
    gc.disable()
    for name in IMPORTS[program]:
        importlib.import_module(name)
    if TABLE in IMPORTS[program]:
        importlib.import_module(TABLE).training_grammar()
    gc.freeze()  # no daemon passes, and so copies, what was imported
    gc.enable()
    request = _serve(socket.socket(fileno=descriptor))
    return 0 if request is None else _run(request)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
