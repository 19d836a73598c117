"""Programs of a training's interpreter that begin with torch imported: forked from one that imports it once.

What an import of torch costs, 2 to 5 s of a processor, is most of a small training. How the agent gets into an
interpreter that imports torch after it is for tests that start one; what it does at a step, a save or a resume is the
same in a standby, and so in these.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from supervisor.core import attempt_files as at

SERVER = Path(__file__).with_name("warm_interpreter.py")
AGENT_PATH = Path(__file__).resolve().parents[2] / "supervisor" / "agent" / "path"
READ_ON_IMPORT = (at.ENV_CONV2D, at.ENV_CONV2D_SCOPE, at.ENV_TRIAGE, at.ENV_MEMORY_PROBE, at.ENV_RANKS_BACKEND)
"""Settings that the agent reads while it prepares or while torch is imported: not those of a warm program."""
TORCH = ("torch", "torch.utils.data", "torch._dynamo")
"""The last is imported by the first optimizer, and takes as long as torch itself."""
RANKS = (*TORCH, "numpy", "torch.distributed", "torch.distributed.device_mesh", "torch.distributed.fsdp")
TRAINERS = (
    *TORCH,
    "accelerate",
    "transformers",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
)
LIGHTNING = (*TORCH, "lightning", "lightning.pytorch.demos.boring_classes")
YOLO = (
    *TORCH,
    "torchvision",
    "cv2",
    "ultralytics",
    "ultralytics.engine.trainer",
    "ultralytics.models.yolo.detect.train",
    "ultralytics.cfg",
    "ultralytics.models.yolo.model",
    "matplotlib.font_manager",
    "requests",
)
"""The last two are imported by each training when it begins."""
START_LIMIT_S = 240.0

_servers: list[subprocess.Popen[bytes]] = []
"""They end by themselves, after this process."""


class WarmProgram:
    """A program that is running, with what is used of a `subprocess.Popen` with text pipes."""

    def __init__(self, connection: socket.socket, stdin: int, stdout: int) -> None:
        self.stdin, self.stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)
        self.returncode: int | None = None
        self._connection, self._messages = connection, connection.makefile("r")
        self.pid = int(self._messages.readline())

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        self._connection.setblocking(False)
        try:
            ended = self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return self.returncode
        finally:
            self._connection.setblocking(True)
        return self.wait() if ended else self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, negative for a signal."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = int(self._messages.readline())
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str | None]:
        """Return what it wrote until its end; kill it after `timeout`."""
        killing = threading.Timer(START_LIMIT_S if timeout is None else timeout, self.kill)
        killing.start()
        self.stdin.close()
        output = "" if self.stdout.closed else self.stdout.read()
        self.wait()
        killing.cancel()
        self.stdout.close()
        self._messages.close()
        self._connection.close()
        return output, None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class WarmInterpreter:
    """An interpreter that has imported modules under the agent, and forks programs."""

    def __init__(self, python: Path, address: Path) -> None:
        self.python, self.address = python, address

    def start(
        self, command: Sequence[str | Path], env: Mapping[str, str], cwd: Path, errors: int | None = None
    ) -> WarmProgram:
        """Start `python [-W ...] (-c code | script) word ...` in the attempt that `env` names, if it is supervised.

        What it writes to its standard error goes into the open file `errors`, or where its output goes.
        """
        python, *words = map(str, command)
        assert python == str(self.python)
        assert not [name for name in READ_ON_IMPORT if name in env], "these need an interpreter of their own"
        folder = env.get(at.ENV_FOLDER)
        assert folder is None or not (Path(folder) / at.REMEDIES).exists(), "remedies are read before the imports"
        rest, warned = list(words), []
        while rest[0] == "-W":
            warned.append(rest[1])
            del rest[:2]
        code = rest[1] if rest[0] == "-c" else None
        argv = ["-c", *rest[2:]] if code is not None else rest
        request = {"argv": argv, "code": code, "words": words, "env": dict(env), "cwd": str(cwd), "warnings": warned}
        reading, stdin = os.pipe()
        stdout, writing = os.pipe()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self.address))
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [data], [reading, writing, writing if errors is None else errors])
        connection.sendall(data[sent:])
        os.close(reading)
        os.close(writing)
        return WarmProgram(connection, stdin, stdout)

    def run(self, command: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> str:
        """Run a program to its end, which is to be a good one; return its standard output."""
        with tempfile.TemporaryFile() as errors:
            program = self.start(command, env, cwd, errors.fileno())
            output, _ = program.communicate()
            errors.seek(0)
            assert program.returncode == 0, errors.read().decode()
        return output


Warm = Callable[..., WarmInterpreter]
"""Of an interpreter and modules, TORCH where none is named."""


def start_interpreter(
    python: Path, modules: Sequence[str], owner_pid: int, *, supervised: bool = True, within: Sequence[str] = ()
) -> WarmInterpreter:
    """Return an interpreter that has imported `modules` and waits for programs until the process `owner_pid` ends.

    `within` are the words of a command that runs it where its programs are to be, such as `ip netns exec`.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm"))  # short: the address of a socket has 107 characters
    address, name = folder / "socket", str(folder)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ROCM_", "PYTHON", "TESTS_LEAN"))}
    quiet = {"OMP_NUM_THREADS": "1", "HOME": name, "YOLO_CONFIG_DIR": name, "YOLO_OFFLINE": "true"}
    words = [
        *within,
        str(python),
        str(SERVER),
        str(owner_pid),
        str(address),
        name,
        str(AGENT_PATH) if supervised else "",
        *modules,
    ]
    server = subprocess.Popen(words, env=kept | quiet, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True)
    _servers.append(server)
    _wait_until_ready(server, address)
    return WarmInterpreter(python, address)


def _wait_until_ready(server: subprocess.Popen[bytes], address: Path) -> None:
    deadline = time.perf_counter() + START_LIMIT_S
    while not address.exists():
        assert server.poll() is None, "the warm interpreter ended"
        assert time.perf_counter() < deadline, "the warm interpreter imports too long"
        time.sleep(0.02)
