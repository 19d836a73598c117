"""The peers at the same work: torchrun, NVIDIA's NVRx and Supervisor, each with the clocked training as its program.

Each runs once, when its first figure is asked for, with the settings it has of itself, except for what a figure is
about (the limit of a hang, the number of restarts).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psutil
from clocked import TRAINING, NotMeasuredError, Output, crash, family, memory_mb, running, until
from figure_table import Peer

CRASHES = 3
BEATS = 300
HEARTBEAT_LIMIT_S = 2.0
START_LIMIT_S = 60.0
"""NVRx and torchrun import torch, on a busy machine twice."""
Found = TypeVar("Found")


Words: TypeAlias = list[str | Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where the peers are, and what was found of them already."""

    folder: Path
    """For everything that the benchmark writes."""
    installed: Path
    train_python: Path
    _found: dict[Callable[..., Any], Any] = field(init=False, default_factory=dict)
    _failed: dict[Callable[..., Any], str] = field(init=False, default_factory=dict)

    def asked(self, name: str, session: Callable[[Peers], Found], pick: Callable[[Found], Sequence[float]]) -> Peer:
        """Return a peer with what `pick` takes from its one session, or with why there is nothing."""
        if session not in self._found and session not in self._failed:
            try:
                self._found[session] = session(self)
            except (NotMeasuredError, OSError, psutil.Error) as error:
                self._failed[session] = f"not measured: {error}"
        if session in self._failed:
            return Peer(name=name, why=self._failed[session])
        return Peer(name=name, values=pick(self._found[session]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunFound:
    """What torchrun was measured at."""

    memory_mb: float
    to_process_s: Sequence[float]
    to_step_s: Sequence[float]


def torchrun(peers: Peers) -> TorchrunFound:
    """Measure crashes of a program under torchrun, and what its agent holds."""
    return _torchrun(peers, "torchrun")


def torchrun_torch(peers: Peers) -> TorchrunFound:
    """Measure the same of a program that imports torch, as every training that torchrun is for."""
    return _torchrun(peers, "torchrun-torch", "--import", "torch")


def _torchrun(peers: Peers, name: str, *more: str) -> TorchrunFound:
    folder, output = _work(peers, name)
    tool: Words = [
        there(peers.train_python),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "1",
    ]
    with running([*tool, "--max-restarts", str(CRASHES), TRAINING, output.path, *more], folder) as agent:
        output.steps_on(20, START_LIMIT_S)
        memory = memory_mb(family(agent.pid, without=[output.lines("began")[-1].pid]))
        to_process_s, to_step_s = _crashes(output)
    return TorchrunFound(memory_mb=memory, to_process_s=to_process_s, to_step_s=to_step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvrxFound:
    """What ft_launcher and its rank monitor were measured at."""

    beats_us: Sequence[float]
    memory_mb: float
    hang_found_s: float
    """From the limit of the last heartbeat until the process was ended."""


def nvrx(peers: Peers) -> NvrxFound:
    """Measure heartbeats, memory and a hang of a program under ft_launcher."""
    folder, output = _work(peers, "nvrx")
    tool: Words = [
        there(peers.installed / "nvrx" / "bin" / "ft_launcher"),
        "--nproc-per-node",
        "1",
        "--rdzv-backend",
        "c10d",
    ]
    own = ["--rdzv-endpoint", f"localhost:{_free_port()}", "--max-restarts", "1"]
    limits = ["--ft-param-initial_rank_heartbeat_timeout=60", f"--ft-param-rank_heartbeat_timeout={HEARTBEAT_LIMIT_S}"]
    training: Words = [
        TRAINING,
        output.path,
        "--beat",
        "nvrx",
        "--every-s",
        "0.01",
        "--hang-after",
        str(BEATS),
    ]
    with running([*tool, *own, *limits, *training], folder) as launcher:
        output.steps_on(BEATS // 2, START_LIMIT_S)
        pid = output.lines("began")[-1].pid
        memory = memory_mb(family(launcher.pid, without=[pid]))
        last = output.steps_on(BEATS, START_LIMIT_S)
        until(lambda: _gone(pid), 30, "NVRx to end a training that hangs")
        found_s = (time.monotonic_ns() - last.monotonic_ns) / 1e9 - HEARTBEAT_LIMIT_S
    beats = [line.number / 1000 for line in output.lines("beat") if line.pid == pid]
    return NvrxFound(beats_us=beats, memory_mb=memory, hang_found_s=found_s)


@contextmanager
def supervisord(peers: Peers, name: str) -> Iterator[tuple[Path, Output]]:
    """Run Supervisor with the clocked training as its one program; yield its configuration and what that says."""
    tool = there(peers.installed / "supervisor" / "bin" / "supervisord")
    folder, output = _work(peers, name)
    config = folder / "supervisord.conf"
    config.write_text(
        f"[unix_http_server]\nfile={folder}/sock\n"
        f"[supervisord]\nlogfile={folder}/supervisord.log\npidfile={folder}/pid\nnodaemon=true\n"
        "[rpcinterface:supervisor]\n"
        "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface\n"
        f"[supervisorctl]\nserverurl=unix://{folder}/sock\n"
        f"[program:training]\ncommand={peers.train_python} {TRAINING} {output.path}\nautorestart=true\n"
    )
    with running([tool, "-c", config], folder):
        output.steps_on(1, START_LIMIT_S)
        yield config, output


def supervisord_crashes(peers: Peers) -> tuple[Sequence[float], Sequence[float]]:
    """Return seconds of crashes of a program under Supervisor: to the new process, to its first step."""
    with supervisord(peers, "supervisord") as (_, output):
        return _crashes(output)


def _crashes(output: Output) -> tuple[Sequence[float], Sequence[float]]:
    """Kill the program again and again, each time once it has run for longer than Supervisor calls a start."""
    found = []
    for _ in range(CRASHES):
        output.steps_on(30, START_LIMIT_S)
        found.append(crash(output, START_LIMIT_S))
    return [match[0] for match in found], [match[1] for match in found]


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _work(peers: Peers, name: str) -> tuple[Path, Output]:
    folder = peers.folder / name
    folder.mkdir()
    return folder, Output(folder / "said")


def there(tool: Path) -> Path:
    """Return a tool that exists; raise NotMeasuredError for one that does not."""
    if not tool.exists():
        raise NotMeasuredError(f"no {tool.name} in {tool.parent} (make bench installs it)")
    return tool


def _free_port() -> int:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        return int(item.getsockname()[1])
