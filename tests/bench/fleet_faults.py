"""Faults of a training on several nodes: how long until all ranks have ended, and who is named.

    python tests/bench/fleet_faults.py [--nodes 2] [--ranks 2] [--times 5] [--faults killed,stopped,...] [--peer]

Each node is a network namespace of this machine with a daemon, torchrun and DDP ranks on gloo (root; `ip`). The faults:

    killed     a rank gets SIGKILL                     cut      the node's link is down
    stopped    a rank gets SIGSTOP, and goes on once its daemon sends SIGCONT, without an incident
    held       a rank gets SIGSTOP again and again     dead     every process of a node gets SIGKILL at once
    spinning   a rank computes and never returns       daemon   the node's daemon gets SIGKILL, and is started again
    loader     a rank's loader never returns           leader   the leader gets SIGKILL, and is started again
    missing    a rank waits in another operation       both     daemon and leader get SIGKILL within a second
    within     a rank gets SIGKILL, and within the second after it the leader too
    leaderless  the leader gets SIGKILL, every process of a node too, and then the leader is started again
    every      all ranks get SIGKILL at once: what the kernel takes to end them, if it is told at once

`--peer` measures torchrun alone with the same program first (`killed`, and `stopped` where asked for), `--ft-launcher
PROGRAM` NVRx too. `--json FILE` appends a line for each fault, `--show FILE ...` sums such lines: `side_by_side.py`
starts several of these at once.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from supervisor.cluster.secret import make_secret  # noqa: E402 - a program, started by its path
from supervisor.runner import process_table  # noqa: E402 - the same

LAUNCHER = ROOT / "tests" / "bench" / "fleet_launcher.py"
TRAINING = ROOT / "tests" / "bench" / "fleet_training.py"
PLAIN = ROOT / "tests" / "bench" / "fleet_plain.py"
PYTHON = os.environ.get("ROCM_SUPERVISOR_TRAIN_PYTHON", sys.executable)
START_LIMIT_S = 240.0
END_LIMIT_S = 120.0
PEER_LIMIT_S = 90.0
"""After which a peer that is not back is started again: what it waits for may never come."""
ROUNDS_TO_END = 500
LEASE_S = 2.0
STALL_S = 6.0
HANGS = ("stopped", "held", "spinning", "loader", "missing")
FAULTS = ("killed", *HANGS, "cut", "dead", "daemon", "leader", "both", "within", "leaderless", "every")
WITH_LEADER = ("leader", "both", "within")
LOST_NODE = ("cut", "dead", "daemon", "both", "leaderless")
STEPS_BETWEEN = 10
"""Of the training, between two faults."""
APART_S = 1.0
"""Between the two kills of `both` and `within`, at most."""
STEPS = re.compile(r"(\S+) (\d+)")
PLAIN_FAULTS = 2
"""Of one training without torch: it shows no steps, so that the leader waits before each further restart."""
PROGRAM_SAVES = 10
"""Steps between two saves of the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One fault."""

    fault: str
    ended_s: float | None
    """From the fault until every rank of the launch had ended."""
    evidence_s: float | None
    named: str
    right: bool | None
    excluded: list[str]
    back_s: float | None
    """From the fault until the next step that no launch had made before."""
    incidents: int
    lost_steps: int | None = None
    """Steps that the training made and had to make again."""
    load: float = 0.0


def until(condition: Callable[[], object], what: str, limit_s: float) -> None:
    """Wait for a condition; end the benchmark where it does not come true."""
    end = time.perf_counter() + limit_s
    while not condition():
        if time.perf_counter() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


def run(*words: str) -> None:
    """Run a program that must succeed."""
    subprocess.run(words, check=True, capture_output=True)


class Network:
    """Namespaces on a bridge; each has the address 10.77.N.2."""

    def __init__(self, nodes: int) -> None:
        self.names = [f"fleet{os.getpid()}n{number}" for number in range(nodes)]
        self.bridge = f"fl{os.getpid()}"[:14]
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", "10.77.0.1/16", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for number, name in enumerate(self.names):
            # Names are asked for at every connection: without an answer each takes ten seconds.
            self.etc(name).mkdir(parents=True)
            (self.etc(name) / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
            hosts = "".join(f"{self.address(other)} node{other}\n" for other in range(nodes))
            (self.etc(name) / "hosts").write_text(f"127.0.0.1 localhost\n10.77.0.1 boss\n{hosts}")
            run("ip", "netns", "add", name)
            run("ip", "link", "add", self.link(number), "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", self.link(number), "master", self.bridge, "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(number)}/16", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    @staticmethod
    def etc(name: str) -> Path:
        return Path("/etc/netns") / name

    def link(self, number: int) -> str:
        return f"{self.bridge[:11]}v{number}"

    def address(self, number: int) -> str:
        return f"10.77.1.{number + 2}"

    def within(self, number: int, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[number], *words]

    def set_link(self, number: int, state: str) -> None:
        run("ip", "link", "set", self.link(number), state)

    def end_processes(self) -> None:
        """Kill whatever runs in a namespace, whoever its parent is by now, until there is nothing."""
        for name in self.names:
            for _ in range(ROUNDS_TO_END):
                listed = subprocess.run(("ip", "netns", "pids", name), check=False, capture_output=True, text=True)
                for pid in listed.stdout.split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                if not listed.stdout.split():
                    break
                time.sleep(0.02)

    def close(self) -> None:
        self.end_processes()
        for name in self.names:
            subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)
            subprocess.run(("rm", "-rf", str(self.etc(name))), check=False)
        subprocess.run(("ip", "link", "del", self.bridge), check=False, capture_output=True)


class Training:
    """One training over the namespaces."""

    def __init__(self, folder: Path, network: Network, asked: argparse.Namespace) -> None:
        self.folder, self.network, self.ranks, self.evidence_s = folder, network, asked.ranks, asked.evidence_s
        self.launcher = [str(LAUNCHER)] if asked.fork else ["-m", "torch.distributed.run"]
        self.program = PLAIN if asked.plain else TRAINING
        if asked.plain:
            self.launcher = ["-S", str(PLAIN)]
        self.nodes = len(network.names)
        make_secret(folder / "secret")
        (folder / "settings.toml").write_text(
            '[supervisor]\nlauncher = "held"\n[jobs.run]\ncommand = ["true"]\n'
            f"[jobs.run.rules.stall]\nlimit_s = {STALL_S}\ndata_wait_limit_s = {STALL_S}\nrest_limit_s = {STALL_S}\n"
        )
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}
        self.leader: subprocess.Popen[bytes] | None = None
        self.daemons: list[subprocess.Popen[bytes] | None] = [None] * self.nodes
        self.start_leader()
        for number in range(self.nodes):
            self.start_node(number)

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, env=self.env, cwd=self.folder)

    def _daemon(self, role: str, state: Path, node: str) -> list[str]:
        base = [sys.executable, "-m", "supervisor.daemon.main", "--role", role, "--training", "run", "--node", node]
        self.env["PYTHONPATH"] = str(ROOT)
        return [*base, "--secret-file", str(self.folder / "secret"), "--state-dir", str(state)]

    def start_leader(self) -> None:
        words = self._daemon("leader", self.folder / "leader", "boss")
        words += ["--nodes", str(self.nodes), "--listen", "10.77.0.1:29300", "--lease-s", str(LEASE_S)]
        self.leader = self._start(
            "leader",
            [*words, "--evidence-s", str(self.evidence_s), "--restarts", "1000", "--restarts-per-hour", "9999"],
        )

    def end_leader(self) -> None:
        assert self.leader is not None
        self.leader.kill()
        self.leader.wait()
        self.leader = None

    def start_node(self, number: int) -> None:
        words = self._daemon("node", self.folder / f"n{number}", f"n{number}")
        words += ["--leader", "10.77.0.1:29300", "--config", str(self.folder / "settings.toml"), "--"]
        words += [PYTHON, *self.launcher, "--nproc-per-node", str(self.ranks), str(self.program)]
        self.daemons[number] = self._start(f"n{number}", self.network.within(number, *words, str(self.folder)))

    def close(self) -> None:
        for process in (self.leader, *self.daemons):
            if process is not None:
                process.kill()
                process.wait()

    def await_steps(self, epoch: str | None, beyond: int = -1) -> tuple[str, int]:
        """Wait for a step of a launch other than `epoch`, further than `beyond`; return its launch and number."""
        found: list[tuple[str, int]] = []

        def look() -> bool:
            try:
                match = STEPS.fullmatch((self.folder / "steps").read_text())
            except OSError:
                return False
            if match is not None and match[1] != epoch and int(match[2]) > beyond:
                found.append((match[1], int(match[2])))
            return bool(found)

        until(look, f"a step beyond {beyond} after launch {epoch}", START_LIMIT_S)
        return found[0]

    def count_lost(self, last: int, epoch: str) -> int | None:
        """Return how many of the steps up to `last` a launch makes again; None where it has not said where it began."""
        lines = map(str.split, (self.folder / "begins").read_text().splitlines())
        return next((max(0, last + 1 - int(begin)) for launch, begin in lines if launch == epoch), None)

    def incidents(self) -> list[dict[str, object]]:
        path = self.folder / "leader" / "incidents.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def find_ranks(program: Path, folder: Path) -> dict[int, process_table.Process]:
    """Return the living ranks of a program that has a folder among its words, or its attempt below it."""
    found = {}
    for process in process_table.read_processes():
        env, below = _read_environment(process.pid), os.fsencode(folder)
        words = _read_proc(process.pid, "cmdline")
        ours = below in words or env.get(b"ROCM_SUPERVISOR_ATTEMPT_DIR", b"").startswith(below + b"/")
        if ours and b"LOCAL_RANK" in env and os.fsencode(program) in words and not process.dead:
            parent = process_table.read_process(process.parent)
            if parent is not None and b"LOCAL_RANK" not in _read_environment(parent.pid):  # else a loader's worker
                found[int(env[b"RANK"])] = process
    return found


def _read_environment(pid: int) -> dict[bytes, bytes]:
    return dict(entry.partition(b"=")[::2] for entry in _read_proc(pid, "environ"))


def _read_proc(pid: int, name: str) -> list[bytes]:
    """Return the entries of a list that the kernel has of a process; none of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []


def await_end(handles: list[int], began: float) -> float | None:
    """Return the seconds until every process has ended; None where that took too long."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    left = set(handles)
    while left:
        for handle, _ in poll.poll(1000):
            left.discard(handle)
            poll.unregister(handle)
        if time.perf_counter() - began > END_LIMIT_S:
            return None
    return time.perf_counter() - began


def signal_ranks(fault: str, harmed: list[process_table.Process]) -> None:
    """Stop or kill the ranks that a fault is about."""
    for process in harmed:
        os.kill(process.pid, signal.SIGSTOP if fault in ("stopped", "held") else signal.SIGKILL)


def do_harm(training: Training, fault: str, victim: int, ranks: dict[int, process_table.Process]) -> None:
    """Do what the fault is."""
    node = victim // training.ranks
    match fault:
        case "killed" | "stopped" | "held" | "within" | "every":
            signal_ranks(fault, [ranks[victim]] if fault != "every" else list(ranks.values()))
        case "cut":
            training.network.set_link(node, "down")
        case "dead" | "leaderless":
            if fault == "leaderless":
                training.end_leader()
            daemon = training.daemons[node]
            assert daemon is not None
            below = process_table.descendants(daemon.pid, process_table.read_processes())
            for process in (*below, None):
                os.kill(daemon.pid if process is None else process.pid, signal.SIGKILL)
        case "daemon" | "both":
            daemon = training.daemons[node]
            assert daemon is not None
            daemon.kill()
        case "leader":
            pass
        case _:
            (training.folder / f"{fault}-{victim}").touch()
    if fault in WITH_LEADER:
        time.sleep(0.0 if fault == "leader" else random.random() * APART_S)
        training.end_leader()
    if training.leader is None:
        training.start_leader()


def goes_on(training: Training, stopped: process_table.Process, step: int) -> bool:
    """Wait until the training makes steps beyond those after the fault, or its ranks have ended; return which."""

    def made() -> int:
        match = STEPS.fullmatch((training.folder / "steps").read_text())
        return int(match[2]) if match is not None else 0

    def is_gone() -> bool:
        now = process_table.read_process(stopped.pid)
        return now is None or now.dead

    until(lambda: is_gone() or made() > step + 100, "steps after SIGCONT, or the end of the ranks", END_LIMIT_S)
    return not is_gone()


def hold(process: process_table.Process) -> None:
    """Stop a process again whenever something lets it go on, until it has ended."""
    while (now := process_table.read_process(process.pid)) is not None and not now.dead:
        if now.state != "T":
            os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.002)


def undo(training: Training, fault: str, victim: int) -> None:
    """Bring back what the training needs to go on."""
    node = victim // training.ranks
    if fault == "cut":
        training.network.set_link(node, "up")
    elif fault in LOST_NODE:
        daemon = training.daemons[node]
        assert daemon is not None
        daemon.wait()
        training.start_node(node)
    elif fault not in ("killed", "stopped", "held", "leader", "within", "every"):
        (training.folder / f"{fault}-{victim}").unlink()


def measure(training: Training, fault: str, victim: int, epoch: str) -> tuple[Measured, str]:
    """Do one fault and wait until the training is back; return what was measured and the new launch."""
    _, step = training.await_steps(None)
    ranks, before = (
        find_ranks(training.program, training.folder),
        len({str(item["id"]) for item in training.incidents()}),
    )
    assert len(ranks) == training.nodes * training.ranks, f"{len(ranks)} ranks"
    handles = [os.pidfd_open(process.pid) for process in ranks.values()]
    began = time.perf_counter()
    do_harm(training, fault, victim, ranks)
    ended_s = lost_steps = None
    if fault == "leader":
        training.await_steps(None, step + 100)
        lost = any(process_table.read_process(process.pid) is None for process in ranks.values())
        new = epoch
        named, right = ("ranks lost", False) if lost else ("-", True)
        facts: dict[str, object] = {}
    elif fault == "stopped" and goes_on(training, ranks[victim], step):
        new, named, right, facts = epoch, "no incident: SIGCONT was enough", True, {}
    else:
        if fault == "held":
            hold(ranks[victim])
        ended_s = await_end(handles, began)
        _, last = training.await_steps(None)
        undo(training, fault, victim)
        new, _ = training.await_steps(epoch, step)
        lost_steps = training.count_lost(last, new)
        # A leader that is killed just after it launched again may come back too late for ranks without a step.
        facts = [item for item in training.incidents() if item["id"] == epoch][-1]
        named, right = judge(facts, fault, victim, training.ranks)
    back_s = time.perf_counter() - began
    for handle in handles:
        os.close(handle)
    evidence_s, excluded = facts.get("collected_s"), facts.get("excluded")
    measured = Measured(
        fault=fault,
        ended_s=ended_s,
        evidence_s=evidence_s if isinstance(evidence_s, float) else None,
        named=named,
        right=right,
        excluded=excluded if isinstance(excluded, list) else [],
        back_s=back_s,
        incidents=len({str(item["id"]) for item in training.incidents()}) - before,
        lost_steps=lost_steps,
        load=os.getloadavg()[0],
    )
    return measured, new


def judge(incident: dict[str, object], fault: str, victim: int, ranks: int) -> tuple[str, bool]:
    """Return who was named, and whether that is who was harmed: a rank, or for a lost node its node."""
    culprit = incident["culprit"]
    assert isinstance(culprit, dict)
    named = f"{culprit['proof']}: {culprit['reason']}"
    if fault in LOST_NODE:
        # With the leader away too, the first report that is left is that of a rank that lost its peer.
        first = fault in ("both", "leaderless") or incident["node"] == f"n{victim // ranks}"
        nobody = culprit["proof"] == "none" and first
        return named, culprit["nodes"] == [f"n{victim // ranks}"] or nobody
    return named, fault == "every" or culprit["ranks"] == [victim]


class Peer:
    """The same program under another launcher alone, which restarts it by itself."""

    def __init__(self, folder: Path, network: Network, ranks: int, launcher: list[str]) -> None:
        self.folder, self.network, self.nodes, self.ranks = folder, network, len(network.names), ranks
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        (folder / "steps").unlink(missing_ok=True)
        self.agents = []
        for number in range(self.nodes):
            words = [*launcher, "--nnodes", str(self.nodes), "--nproc-per-node", str(ranks), "--max-restarts", "100"]
            words += ["--rdzv-backend", "c10d", "--rdzv-id", "peer", "--rdzv-endpoint", f"{network.address(0)}:29500"]
            words += ["--rdzv-conf", f"is_host={int(number == 0)}", "--local-addr", network.address(number)]
            words = network.within(number, *words, str(TRAINING), str(folder))
            self.agents.append(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def measure(self, fault: str, victim: int) -> tuple[float | None, float | None]:
        """Return how long it took to end all ranks, and to a step not made before; None where that was not in time."""
        begun = self.step()
        until(lambda: self.step() > begun + STEPS_BETWEEN, "the peer's steps", PEER_LIMIT_S)
        until(
            lambda: len(find_ranks(TRAINING, self.folder)) == self.nodes * self.ranks, "the peer's ranks", PEER_LIMIT_S
        )
        found = find_ranks(TRAINING, self.folder)
        handles = [os.pidfd_open(process.pid) for process in found.values()]
        began = time.perf_counter()
        os.kill(found[victim].pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        ended_s = await_end(handles, began)
        for handle in handles:
            os.close(handle)
        if ended_s is None:
            return None, None
        last = self.step()
        (self.folder / "steps").unlink(missing_ok=True)  # rank 0 has ended: the next is of the next launch
        try:
            until(lambda: self.step() > last, "the peer's next step", PEER_LIMIT_S)
        except TimeoutError:
            return ended_s, None
        return ended_s, time.perf_counter() - began

    def step(self) -> int:
        """Return the newest step, -1 for none."""
        try:
            match = STEPS.fullmatch((self.folder / "steps").read_text())
        except OSError:
            return -1
        return -1 if match is None else int(match[2])

    def close(self) -> None:
        for agent in self.agents:  # first: an agent starts ranks again that have ended
            agent.kill()
            agent.wait()
        self.network.end_processes()


def show_peer(name: str, found: list[tuple[float | None, float | None]]) -> None:
    """Print what one launcher alone took."""
    for what, column in (("all ended", 0), ("back", 1)):
        known = sorted(seconds for row in found if (seconds := row[column]) is not None)
        print(f"{name} alone, killed: n={len(found)}, {what} after {describe(known)} s", flush=True)


def measure_peers(folder: Path, network: Network, asked: argparse.Namespace, note: Callable[..., None]) -> None:
    """Print what torchrun and, where it is named, NVRx' ft_launcher take for the same faults."""
    peers = {"torchrun": [PYTHON, "-m", "torch.distributed.run"]}
    if asked.ft_launcher:
        peers["ft_launcher"] = [asked.ft_launcher, "--ignore-missing-fault-tol-cfg"]
    for name, launcher in peers.items():
        peer = Peer(folder, network, asked.ranks, launcher)
        try:
            found = []
            for number in range(asked.times):
                took = peer.measure("killed", (number * 3 + 1) % (peer.nodes * peer.ranks))
                print(f"  {name} alone, killed: all ended, first new step: {took}", flush=True)
                found.append(took)
                note(peer=name, took=took)
                if took[1] is None:
                    peer.close()
                    peer = Peer(folder, network, asked.ranks, launcher)
            show_peer(name, found)
            if "stopped" in asked.faults.split(","):
                took = peer.measure("stopped", 1)
                print(f"  {name} alone, stopped: {took} (None: not within {END_LIMIT_S:.0f} s)", flush=True)
        except TimeoutError as error:
            print(f"  {name} alone: not within the limit: {error}", flush=True)
        finally:
            peer.close()
            for path in ("saved.pt", "steps"):
                (folder / path).unlink(missing_ok=True)


def describe(seconds: list[float]) -> str:
    """Return median, range and 99th percentile of sorted values."""
    if not seconds:
        return "-"
    p99 = seconds[math.ceil(0.99 * len(seconds)) - 1]
    return f"{statistics.median(seconds):.3f} ({seconds[0]:.3f}-{seconds[-1]:.3f}; p99 {p99:.3f})"


def show(measured: list[Measured]) -> None:
    """Print one line for each kind of fault."""
    for fault in dict.fromkeys(item.fault for item in measured):
        items = [item for item in measured if item.fault == fault]
        ended = sorted(item.ended_s for item in items if item.ended_s is not None)
        evidence = [item.evidence_s for item in items if item.evidence_s is not None]
        back = sorted(item.back_s for item in items if item.back_s is not None)
        line = f"{fault}: n={len(items)}"
        if ended:
            line += f", all ended after {describe(ended)} s"
        if evidence:
            line += f", evidence {statistics.median(evidence):.3f} s (max {max(evidence):.3f})"
        line += f", back after {describe(back)} s" if back else ""
        right = sum(item.right is True for item in items)
        innocent = sum(bool(item.excluded) for item in items if not item.right)
        counts = sorted({item.incidents for item in items})
        nobody = sum(item.named.startswith("none:") for item in items)
        lost = max((item.lost_steps for item in items if item.lost_steps is not None), default=None)
        line += f", right {right}/{len(items)} (nobody named {nobody}), innocent excluded {innocent}"
        load = f"{min(item.load for item in items):.0f}-{max(item.load for item in items):.0f}"
        line += f", incidents each {counts}, steps to make again at most {lost} (saved each {PROGRAM_SAVES})"
        print(f"{line}, load {load}", flush=True)


def sum_up(paths: list[Path]) -> None:
    """Print what lines of several runs come to, for each way in which they were run."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for way in sorted({line["way"] for line in lines}):
        here = [line for line in lines if line["way"] == way]
        print(f"{way}: {len({line['run'] for line in here})} runs")
        show([Measured(**line["fault"]) for line in here if "fault" in line])
        for name in sorted({line["peer"] for line in here if "peer" in line}):
            show_peer(name, [line["took"] for line in here if line.get("peer") == name])
        for line in here:
            if "failed" in line:
                print(f"  not measured: {line['failed']}")


def run_faults(asked: argparse.Namespace, network: Network, folder: Path, note: Callable[..., None]) -> list[Measured]:
    """Do the faults that are asked for, until they are done or the time is over; return what was measured."""
    measured: list[Measured] = []
    over_s = time.perf_counter() + asked.limit_s
    wanted = [(number, fault) for number in range(asked.times) for fault in asked.faults.split(",")]
    while wanted and time.perf_counter() < over_s:
        place = folder / f"training{len(wanted)}"
        place.mkdir()
        training = Training(place, network, asked)
        try:
            epoch, _ = training.await_steps(None)
            for _ in range(PLAIN_FAULTS if asked.plain else len(wanted)):
                if time.perf_counter() >= over_s:
                    break
                number, fault = wanted[0]
                victim = ((number + asked.first) * 3 + 1) % (asked.nodes * asked.ranks)
                training.await_steps(None, training.await_steps(None)[1] + STEPS_BETWEEN)
                result, epoch = measure(training, fault, victim, epoch)
                print(f"  {number} {result}", flush=True)
                measured.append(result)
                note(fault=dataclasses.asdict(result))
                wanted.pop(0)
        except (TimeoutError, AssertionError, OSError) as error:  # another training takes its place
            print(f"  {wanted[0]}: {type(error).__name__}: {error}", flush=True)
            note(failed=f"{wanted.pop(0)}: {type(error).__name__}: {error}")
        finally:
            training.close()
            network.end_processes()
            for node in range(asked.nodes):
                network.set_link(node, "up")
    return measured


def main() -> None:
    """Run the faults that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--evidence-s", type=float, default=1.0)
    parser.add_argument("--fork", action="store_true", help="fork ranks from torchrun: torch is imported once a node")
    parser.add_argument("--plain", action="store_true", help="ranks without torch: the supervisor's own share is left")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--ft-launcher", help="NVRx' program, beside --peer")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and records")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no fault after that")
    parser.add_argument("--first", type=int, default=0, help="which ranks are harmed first")
    parser.add_argument("--json", type=Path, help="append a line for each fault to this file")
    parser.add_argument("--show", type=Path, nargs="+", help="only sum the lines of such files")
    asked = parser.parse_args()
    if asked.show:
        sum_up(asked.show)
        return
    way = f"{asked.nodes} nodes x {asked.ranks} ranks, evidence {asked.evidence_s:g} s{', forked' * asked.fork}"
    way += ", plain" * asked.plain

    def note(**what: object) -> None:
        if asked.json is not None:
            with asked.json.open("a") as file:
                file.write(json.dumps({"way": way, "run": f"{asked.first} {folder}", **what}) + "\n")

    network = Network(asked.nodes)
    folder, load = Path(tempfile.mkdtemp(prefix="fleet-faults-")), os.getloadavg()[0]
    print(f"{asked.nodes} nodes x {asked.ranks} ranks, lease {LEASE_S} s, stall {STALL_S} s, load {load:.1f}")
    measured: list[Measured] = []
    try:
        if asked.peer:
            measure_peers(folder, network, asked, note)
        measured += run_faults(asked, network, folder, note)
    finally:
        show(measured)
        network.close()
        print(f"kept in {folder}" if asked.keep else "", end="\n")
        if not asked.keep:
            subprocess.run(("rm", "-rf", str(folder)), check=False)


if __name__ == "__main__":
    main()
