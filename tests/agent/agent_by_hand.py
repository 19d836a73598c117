"""An attempt's folder made, read and commanded by hand, with the numbers of core/attempt_files.py; no daemon."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.core import attempt_files as at
from tests.rigs.warm import WarmInterpreter, WarmProgram

AGENT_PATH = Path(__file__).resolve().parents[2] / "supervisor" / "agent" / "path"
WANTED = ("3.8", "3.10", "3.12", "3.13", "3.14")
PORTS = (20_000, 30_000)
"""Below those that Linux gives to whoever asks for any (ip_local_port_range, 32768 to 60999)."""


@functools.cache
def interpreters() -> list[Path]:
    """Return bare interpreters of several ages, of pyenv or on the PATH; where there is none, that of the tests."""
    return [path for version in WANTED if (path := _find_python(version))] or [Path(sys.executable)]


def _find_python(version: str) -> Path | None:
    """Return an interpreter of this version; what pyenv has on the PATH may be a shim that starts none."""
    pyenv = shutil.which("pyenv")
    places = [os.environ.get("PYENV_ROOT"), Path(pyenv).resolve().parents[1] if pyenv else None, Path.home() / ".pyenv"]
    for place in places:
        if place and (found := sorted(Path(place).glob(f"versions/{version}.*/bin/python"))):
            return found[0]
    if (named := shutil.which(f"python{version}")) is None:
        return None
    done = subprocess.run(
        [named, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
    )
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def name_of(python: Path) -> str:
    """Return what a test of this interpreter is called, wherever it lies: python3.8."""
    return python.resolve().name


class Record(NamedTuple):
    sequence: int
    step: int
    monotonic_ns: int
    epoch: int
    known: int
    loss: float
    lr: float
    grad_norm: float
    data_wait_s: float
    gpu_memory_bytes: int
    samples: int
    tokens: int
    check: int


class Attempt:
    """One attempt's folder, and programs run under it."""

    def __init__(self, folder: Path, cwd: Path | None = None, warm: WarmInterpreter | None = None) -> None:
        self.folder, self.cwd, self.warm = folder, cwd or folder, warm
        (folder / at.RUN).mkdir(parents=True, exist_ok=True)

    # --- what the shim does ---------------------------------------------------------------------------------------

    def make_recorder(self, capacity: int = 64, rank: int = 0) -> Path:
        path = self.recorder(rank)
        identity = at.IDENTITY.pack(at.MAGIC, at.HEADER_BYTES, at.RECORD.size, capacity, rank)
        path.write_bytes(identity.ljust(at.HEADER_BYTES + capacity * at.RECORD.size, b"\0"))
        return path

    def command(self, command: int, number: int) -> None:
        with self.recorder().open("r+b") as file:
            file.seek(at.COMMAND_OFFSET)
            file.write(at.COMMAND.pack(command, number))

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROCM_", "PYTHON"))}
        path = os.pathsep.join(filter(None, (str(AGENT_PATH), more.pop("PYTHONPATH", ""))))
        return {**kept, at.ENV_FOLDER: str(self.folder / at.RUN), "PYTHONPATH": path, **more}

    def start(self, command: Sequence[str | Path], **environment: str) -> subprocess.Popen[str] | WarmProgram:
        if self.warm is not None:
            return self.warm.start(command, self.environment(**environment), self.cwd)
        return subprocess.Popen(
            [str(word) for word in command],
            env=self.environment(**environment),
            cwd=self.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: Sequence[str | Path], **environment: str) -> Finished:
        process = self.start(command, **environment)
        output, _ = process.communicate(timeout=600)
        return Finished(process.wait(), output)

    # --- what the daemon reads ------------------------------------------------------------------------------------

    def recorder(self, rank: int = 0) -> Path:
        return self.folder / (at.RECORDER if rank == 0 else f"{at.RUN}/recorder.rank{rank}.bin")

    def header(self, offset: int, layout: struct.Struct, rank: int = 0) -> tuple[Any, ...]:
        return layout.unpack_from(self.recorder(rank).read_bytes()[: at.HEADER_BYTES], offset)

    def head(self, rank: int = 0) -> int:
        path = self.recorder(rank)
        if not path.exists() or path.stat().st_size < at.HEADER_BYTES:  # it is being made
            return 0
        return int(self.header(at.HEAD_OFFSET, at.HEAD, rank)[0])

    def stage(self) -> str:
        return at.STAGES[self.header(at.STAGE_OFFSET, at.STAGE)[0]]

    def answer(self) -> tuple[int, int]:
        answer, number = self.header(at.ANSWER_OFFSET, at.ANSWER)
        return answer, number

    def records(self, rank: int = 0) -> list[Record]:
        content = self.recorder(rank).read_bytes()
        capacity = at.IDENTITY.unpack_from(content, 0)[3]
        head = self.head(rank)
        found = []
        for number in range(max(0, head - capacity), head):
            offset = at.HEADER_BYTES + number % capacity * at.RECORD.size
            record = Record(*at.RECORD.unpack_from(content, offset))
            assert record.sequence == number + 1
            assert record.check == (record.sequence & 0xFFFFFFFF) ^ at.CHECK_XOR
            found.append(record)
        return found

    def list_reports(self, event: str | None = None) -> list[dict[str, Any]]:
        path = self.folder / at.AGENT
        # The agent may be writing: a line without its end is none yet.
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        return [fact for fact in map(json.loads, lines) if event in (None, fact["event"])]

    def failures(self) -> list[dict[str, Any]]:
        return self.list_reports("hook_failed") + self.list_reports("save_failed")


def _find_free_port() -> int:
    """Return a port that nothing has, which is none that the kernel gives to other tests meanwhile."""
    while True:
        port = random.SystemRandom().randrange(*PORTS)  # forks of one process would draw the same
        with suppress(OSError), socket.create_server(("", port)):
            return port


class Finished(NamedTuple):
    code: int
    output: str


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Return when `condition` holds; fail when it does not within `seconds`."""
    deadline = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < deadline, "waited in vain"
        time.sleep(0.01)


def plain_environment(**more: str) -> Mapping[str, str]:
    """The environment of a program that nobody supervises."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROCM_", "PYTHON"))}
    return {**kept, **more}


def run_with_agent(python: WarmInterpreter, script: str) -> list[str]:
    """Run a script that imports parts of the agent; return the lines that it prints."""
    environment = plain_environment(PYTHONPATH=str(AGENT_PATH))
    return python.run([python.python, "-c", script], environment, Path.cwd()).splitlines()


class Attempts:
    """Runs of one command in one folder, each the next attempt of one job, resumed from its newest snapshot."""

    def __init__(self, python: Path, folder: Path, *script: str | Path, warm: WarmInterpreter | None = None) -> None:
        self.command: list[str | Path] = [python, *script]
        self.warm = warm
        self.folder, self.snapshots = folder, folder / "snapshots"
        self.snapshots.mkdir(parents=True)
        self.attempts: list[Attempt] = []

    def run(self, *options: str, every: str = "0.01", command: int = 0, **environment: str) -> Finished:
        """Make the next attempt; `command` is given to it at once."""
        attempt, ours = self._make(every)
        if command:
            attempt.command(command, 5)
        return attempt.run([*self.command, *options], **ours, **environment)

    def run_ranks(self, ranks: int, *options: str, every: str = "0", **environment: str) -> Finished:
        """Make the next attempt of so many ranks without a launcher; warm, each is given its place as by one."""
        attempt, ours = self._make(every)
        ours |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_find_free_port())}
        world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        started = []
        for rank in map(str, range(ranks)):
            place = {"RANK": rank, "LOCAL_RANK": rank, **world}
            started.append(attempt.start([self.command[0], self.command[-1], *options], **ours, **place, **environment))
        outputs = [process.communicate(timeout=600)[0] for process in started]
        return Finished(max(abs(process.wait()) for process in started), "".join(outputs))

    def _make(self, every: str) -> tuple[Attempt, dict[str, str]]:
        """Return the next attempt and its environment."""
        attempt = Attempt(self.folder / str(len(self.attempts)), self.folder, self.warm)
        attempt.make_recorder()
        self.attempts.append(attempt)
        resume = {at.ENV_RESUME_FROM: str(self.newest())} if self.newest() else {}
        ours = {at.ENV_SNAPSHOTS: str(self.snapshots), at.ENV_SNAPSHOT_EVERY: every, "OMP_NUM_THREADS": "1"}
        return attempt, ours | resume

    def newest(self) -> Path | None:
        """Return the newest snapshot."""
        return max(self.snapshots.glob("step-*.pt"), default=None)
