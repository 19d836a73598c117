"""A training on several nodes of this machine: real daemons, a leader, ranks that look like torchrun's, or are."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.cluster.secret import make_secret
from supervisor.runner import code_copy, process_table
from tests.rigs.forked_daemon import ForkedDaemon, is_forkable, start_daemon
from tests.rigs.laid_code import lay_code

Daemon = subprocess.Popen[bytes] | ForkedDaemon

LIMIT_S = 240.0
RANK = """
import os, socket, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
epoch = os.environ["ROCM_SUPERVISOR_EPOCH"]
with (folder / f"rank-{os.environ['RANK']}").open("a") as file:
    file.write(f"{epoch} {os.getpid()}\\n")
(folder / f"resumed-{os.environ['RANK']}").write_text(os.environ["ROCM_SUPERVISOR_RESUME_FROM"])
while not (folder / "finish").exists():
    time.sleep(0.05)
"""
LAUNCHER = """
import os, subprocess, sys, time
size, node = 2, int(os.environ["PET_NODE_RANK"])
ranks = []
for local in range(size):
    place = {"RANK": node * size + local, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": size}
    place = {name: str(value) for name, value in place.items()}
    ranks.append(subprocess.Popen([sys.executable, "-S", *sys.argv[1:]], env={**os.environ, **place}))
while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
    time.sleep(2)
failed = any(rank.poll() for rank in ranks)
for local, rank in enumerate(ranks):
    if rank.returncode:
        print(f"failed (exitcode: {rank.returncode}) local_rank: {local} (pid: {rank.pid}) of binary", flush=True)
for rank in ranks:
    rank.terminate()
sys.exit(failed)
"""
"""Reports a rank that has failed and ends the others, as torchrun's agent does; slower, for machines under load."""


def until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait for a condition; fail where it does not come true in time. What has long been asked is asked more rarely."""
    began_s = time.perf_counter()
    while not condition():
        waited_s = time.perf_counter() - began_s
        assert waited_s < limit_s, f"not within {limit_s:.0f} s: {what}"
        time.sleep(min(0.1, max(0.01, waited_s / 20)))


def gone(pid: int) -> bool:
    """Whether a process has ended, though it may wait to be reaped."""
    process = process_table.read_process(pid)
    return process is None or process.dead


def free_port() -> int:
    """Return a port that nothing listens on at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """One training; `with` ends every process of it."""

    def __init__(
        self, folder: Path, nodes: int, command: list[str] | None = None, code_copies: Path | None = None
    ) -> None:
        """With `code_copies` nodes find the code that each would copy and compile for its first launch."""
        self.folder, self.count, self._code_copies = folder, nodes, code_copies
        self.secret, self.port = folder / "secret", free_port()
        self.rendezvous_port = free_port()
        make_secret(self.secret)
        (folder / "rank.py").write_text(RANK)
        (folder / "launcher.py").write_text(LAUNCHER)
        self.command = command or [
            sys.executable,
            "-S",
            str(folder / "launcher.py"),
            str(folder / "rank.py"),
            str(folder),
        ]
        self.env: dict[str, str] = {}
        self.settings: Path | None = None
        self.leader: Daemon | None = None
        self.daemons: dict[str, Daemon] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.daemons.values(), *([self.leader] if self.leader else [])):
            process.kill()
            process.wait(60)
        pids = [pid for name in self.folder.glob("rank-*") for _, pid in self.read_rank(name)]
        until(lambda: all(gone(pid) for pid in pids), "the end of every rank")

    def start_leader(self, *options: str) -> None:
        given = ["--nodes", str(self.count), "--listen", f"127.0.0.1:{self.port}", "--port", str(self.rendezvous_port)]
        # Long times: a machine under load is no fault of the training.
        given += ["--lease-s", "60", "--evidence-s", "20", "--spares-s", "0", *options]
        self.leader = self._start("leader", self.folder / "leader", "boss", *given)

    def start_node(self, name: str, *, port: int | None = None, state: str | None = None) -> None:
        at = f"127.0.0.1:{port or self.port}"
        given = ["--leader", at, "--host", "127.0.0.1", "--snapshots", str(self.folder / "all")]
        given += ["--config", str(self.settings)] if self.settings is not None else []
        given += ["--local-dir", str(self.folder / "own"), "--", *self.command]
        folder = self.folder / (state or name)
        if self._code_copies is not None and not (folder / code_copy.FOLDER).exists():
            lay_code(self._code_copies, folder)
        self.daemons[name] = self._start("node", folder, name, *given)

    def start(self, *options: str) -> None:
        """Start everything; returns once every rank runs."""
        self.start_leader(*options)
        for number in range(self.count):
            self.start_node(f"n{number}")
        self.await_epoch(1)

    def _start(self, role: str, state: Path, name: str, *options: str) -> Daemon:
        words = ["--role", role, "--training", "run", "--secret-file", str(self.secret), "--state-dir", str(state)]
        words += ["--node", name, *options]
        with (self.folder / f"{name}.log").open("ab") as log:
            if is_forkable(self.env):
                return start_daemon(words, log.fileno(), env=self.env)
            command = [sys.executable, "-m", "supervisor.daemon.main", *words]
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.env})

    # --- what is there --------------------------------------------------------------------------------------------

    @staticmethod
    def read_rank(path: Path) -> list[tuple[str, int]]:
        """Return (epoch, pid) of each start of a rank, oldest first."""
        lines = [line.split() for line in path.read_text().splitlines()]
        return [(line[0], int(line[1])) for line in lines if len(line) == 2]

    def pids(self, relaunch: int) -> dict[int, int]:
        """Return the process of each rank that began in a launch."""
        found = {}
        for path in self.folder.glob("rank-*"):
            for epoch, pid in self.read_rank(path):
                if epoch.endswith(f".{relaunch}"):
                    found[int(path.name.partition("-")[2])] = pid
        return found

    def resumed_from(self) -> set[str]:
        """Return what the ranks were told to resume from when each began last."""
        return {path.read_text() for path in self.folder.glob("resumed-*")}

    def await_epoch(self, relaunch: int, ranks: int | None = None) -> dict[int, int]:
        """Wait until every rank of a launch runs and its node watches it; return their pids."""
        wanted = 2 * self.count if ranks is None else ranks
        until(lambda: len(self.pids(relaunch)) == wanted, f"{wanted} ranks of launch {relaunch}\n{self.logs()}")
        until(lambda: self.watched() == wanted, f"the nodes watch {wanted} ranks\n{self.logs()}")
        return self.pids(relaunch)

    def watched(self) -> int:
        """Return how many ranks the nodes have found in the present launch."""
        ranks = self.state()["ranks"]
        assert isinstance(ranks, dict)
        return sum(len(numbers) for numbers in ranks.values())

    def incidents(self) -> list[Mapping[str, object]]:
        path = self.folder / "leader" / "incidents.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def warnings(self) -> list[Mapping[str, object]]:
        """Return what the leader has written down of the warnings of its nodes."""
        path = self.folder / "leader" / "warnings.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def state(self) -> Mapping[str, object]:
        found = json.loads((self.folder / "leader" / "state.json").read_text())
        assert isinstance(found, dict)
        return found

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))

    def kill_daemon(self, name: str) -> None:
        self.daemons[name].send_signal(signal.SIGKILL)
        self.daemons.pop(name).wait(60)
