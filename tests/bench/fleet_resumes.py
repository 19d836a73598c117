"""Kills ranks of a training on several nodes at random moments, and compares its end with that of an undisturbed run.

    python tests/bench/fleet_resumes.py [--kills 20] [--fsdp | --dcp | --framework KIND] [--every-s 2] [--nodes 2]
        [--ranks 2] [--seed 1]

Each node is a network namespace of this machine with a daemon and torchrun on gloo (root; `ip`). The undisturbed run is
torchrun alone with as many ranks. Printed: who was killed, what all ranks resumed from, the work that was redone in
seconds and steps, and whether weights, moments and each rank's place in its data are equal bit by bit at the end.
`--whom ranks,daemon,leader,both` kills daemons and the leader too, and starts them again; after each kill every
generation that lies there is proven. Hundreds of kills: `--warm --every-s 0.001 --step-s 0.01`, where ranks are forked
from an interpreter on each node that has imported torch (`fleet_warm.py`): a launch takes a second in place of ten.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from fleet_faults import (  # noqa: E402 - a program, started by its path
    LAUNCHER,
    PYTHON,
    START_LIMIT_S,
    Network,
    find_ranks,
    until,
)

from supervisor.agent import prove  # noqa: E402 - the same
from supervisor.cluster.secret import make_secret  # noqa: E402 - the same
from supervisor.core import attempt_files as at  # noqa: E402 - the same
from tests.rigs.warm import RANKS, TRAINERS, start_interpreter  # noqa: E402 - the same

PROGRAM = ROOT / "tests" / "agent" / "own_shards.py"
FRAMEWORKS = ROOT / "tests" / "bench" / "fleet_frameworks.py"
OWN_PROGRAM = ROOT / "tests" / "bench" / "fleet_dcp.py"
WARM = ROOT / "tests" / "bench" / "fleet_warm.py"
AGENT = ROOT / "supervisor" / "agent" / "path"
ANYWHERE_S = 8.0
"""What a rank takes to import, join and load, on a busy machine."""
LEAST_S = 0.5
"""Of which the moment of a kill is drawn."""
BATCHES = 4
"""Of an epoch with 4 ranks."""
ROWS, BATCH = 62, 4
"""What the program trains on, and how much of it each rank takes a step."""
ENDLESS = 1_000_000
"""Epochs of the program, until it is known how many kills there were."""
ALONE_PORT = "29555"
STEP_NUMBER = re.compile(r"step-(\d{12})")


class Training:
    """One training over the namespaces."""

    def __init__(self, folder: Path, network: Network, asked: argparse.Namespace) -> None:
        self.folder, self.network, self.asked = folder, network, asked
        self.nodes = [f"n{number}" for number in range(asked.nodes)]
        make_secret(folder / "secret")
        (folder / "settings.toml").write_text(
            f'[supervisor]\nlauncher = "held"\n[jobs.run]\ncommand = ["true"]\nsnapshot_every_s = {asked.every_s}\n'
            + ('[jobs.run.checkpoints]\npaths = ["own/step-*/"]\n' if asked.dcp else "")
        )
        self.killed: dict[str, int] = {}
        self.began_s = time.perf_counter()
        self.launchers = [find_launcher(asked, network, number) for number in range(asked.nodes)]
        self.own = folder / "own" if asked.dcp else folder / "snapshots" / "run"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCM_SUPERVISOR")}
        self.env = {
            **environment,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._words: dict[str, list[str]] = {}
        leader = [
            *self._daemon("leader", "leader", "boss"),
            "--nodes",
            str(asked.nodes),
            "--restarts",
            "1000",
            "--restarts-per-hour",
            "9999",
        ]
        self._start("leader", [*leader, "--listen", "10.77.0.1:29300", "--spares-s", "0"])
        for number in range(asked.nodes):
            words = [*self._daemon("node", f"n{number}", f"n{number}"), "--leader", "10.77.0.1:29300"]
            words += ["--config", str(folder / "settings.toml")]
            words += ["--"] if asked.dcp else ["--snapshots", str(folder / "snapshots"), "--"]
            words += [*self.launchers[number], "--nproc-per-node", str(asked.ranks), *command(asked, folder)]
            self._start(f"n{number}", network.within(number, *words))

    def _daemon(self, role: str, state: str, node: str) -> list[str]:
        base = [sys.executable, "-m", "supervisor.daemon.main", "--role", role, "--training", "run", "--node", node]
        return [*base, "--secret-file", str(self.folder / "secret"), "--state-dir", str(self.folder / state)]

    def _start(self, name: str, words: list[str]) -> None:
        self._words[name] = words
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log, env=self.env, cwd=self.folder)

    def kill(self, name: str) -> None:
        """Kill the leader or a node's daemon."""
        self.processes[name].kill()
        self.processes[name].wait()

    def start_again(self, name: str) -> None:
        """Start what was killed."""
        self._start(name, self._words[name])

    def await_leader(self) -> None:
        """Wait until the leader that was started last has written its state."""
        file = self.folder / "leader" / "state.json"
        before = file.stat().st_mtime_ns
        until(lambda: file.stat().st_mtime_ns > before, "the leader's state", START_LIMIT_S)

    def note(self, text: str) -> None:
        """Print a line with the time since the start and the load."""
        print(f"  {time.perf_counter() - self.began_s:6.1f} s, load {os.getloadavg()[0]:.1f}: {text}", flush=True)

    def launch(self) -> int:
        """Return the number of the newest launch, 0 before the first."""
        number = str(self.state().get("epoch", "")).rpartition(".")[2]
        return int(number) if number else 0

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)

    def state(self) -> dict[str, object]:
        """Return what the leader wrote last."""
        try:
            found = json.loads((self.folder / "leader" / "state.json").read_text())
        except (OSError, ValueError):
            return {}
        return dict(found)

    def records(self, launch: int) -> list[tuple[int, float]]:
        """Return (step, seconds) of what rank 0 recorded in a launch; every node of this training has launched it."""
        path = self.folder / "n0" / "jobs" / "run" / str(launch) / at.RECORDER
        try:
            data = path.read_bytes()
        except OSError:
            return []
        _, header, size, capacity, _ = at.IDENTITY.unpack_from(data)
        (head,) = at.HEAD.unpack_from(data, at.HEAD_OFFSET)
        rows = (at.RECORD.unpack_from(data, header + number % capacity * size) for number in range(head))
        return [(int(row[1]), row[2] / 1e9) for row in rows]

    def find_ranks(self) -> dict[int, int]:
        """Return the pid of each living rank."""
        return {rank: process.pid for rank, process in find_ranks(program(self.asked), self.folder).items()}

    def newest(self) -> int:
        """Return the step of the newest generation, 0 for none."""
        names = (path.name for path in self.own.glob("step-*"))
        return max((int(match[1]) for name in names if (match := STEP_NUMBER.fullmatch(name))), default=0)

    def digests(self) -> list[str]:
        """Return what each rank ended with."""
        text = "".join(
            path.read_text(errors="replace") for path in self.folder.glob(f"n*/jobs/run/*/{at.OUTPUT}")
        ) + "".join(path.read_text(errors="replace") for path in self.folder.glob(f"n*/jobs/run/*/{at.FOLDED}"))
        return sorted({line for line in text.splitlines() if line.startswith("DIGEST")})


def program(asked: argparse.Namespace) -> Path:
    """Return what all ranks run."""
    return FRAMEWORKS if asked.framework else OWN_PROGRAM if asked.dcp else PROGRAM


def find_launcher(asked: argparse.Namespace, network: Network, number: int) -> list[str]:
    """Return the words that start a node's ranks, up to torchrun's options."""
    if not asked.warm:
        return [PYTHON, str(LAUNCHER)] if asked.fork else [PYTHON, "-m", "torch.distributed.run"]
    modules = TRAINERS if asked.framework else RANKS
    interpreter = start_interpreter(Path(PYTHON), modules, os.getpid(), within=network.within(number))
    return [sys.executable, "-S", str(WARM), str(interpreter.address)]


def command(asked: argparse.Namespace, folder: Path) -> list[str]:
    """Return the program and its options."""
    if asked.dcp:
        first = [str(FRAMEWORKS), asked.framework] if asked.framework else [str(OWN_PROGRAM)]
        return [*first, "--steps", str(asked.epochs * BATCHES), "--step-s", str(asked.step_s)]
    if asked.framework:
        steps = ["--steps", str(ENDLESS), "--steps-in", str(folder / "epochs")]
        return [str(FRAMEWORKS), asked.framework, *steps, "--step-s", str(asked.step_s)]
    kind = [] if asked.fsdp else ["--ddp"]
    epochs = ["--epochs", str(ENDLESS), "--epochs-in", str(folder / "epochs")]
    return [str(PROGRAM), *epochs, "--step-s", str(asked.step_s), *kind]


def run_alone(asked: argparse.Namespace, folder: Path, launcher: list[str]) -> list[str]:
    """Return what the ranks of an undisturbed run end with: under torchrun alone, or forked as the others were."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCM_SUPERVISOR")}
    env = {**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(AGENT), "GLOO_SOCKET_IFNAME": "lo"}
    words = [PYTHON, "-m", "torch.distributed.run", "--standalone"]
    if launcher:
        attempt = folder / "alone" / at.RECORDER
        attempt.parent.mkdir(parents=True)
        attempt.touch()
        place = {"PET_NODE_RANK": "0", "PET_NNODES": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ALONE_PORT}
        words, env = launcher, {**env, **place, at.ENV_FOLDER: str(attempt.parent)}
    words = [*words, "--nproc-per-node", str(asked.nodes * asked.ranks)]
    alone = argparse.Namespace(**{**vars(asked), "step_s": 0.0})
    ran = subprocess.run(
        [*words, *command(alone, folder)], env=env, cwd=folder, capture_output=True, text=True, check=False
    )
    shutil.rmtree(folder / "own", ignore_errors=True)
    for path in folder.glob("states-*"):
        path.rename(folder / f"alone-{path.name}")
    found = sorted(line for line in ran.stdout.splitlines() if line.startswith("DIGEST"))
    if not found:
        raise SystemExit(f"the undisturbed run failed\n{ran.stdout[-1000:]}\n{ran.stderr[-3000:]}")
    return found


def kill_once(training: Training, rng: random.Random, log: list[float], rejected: list[str]) -> int | None:
    """Kill at a random moment of a launch; return how many generations were judged, None where it had finished."""
    asked, launch = training.asked, training.launch()

    def is_over() -> bool:
        return bool(training.state().get("stage") == "over")

    def is_there() -> bool:
        return bool(len(training.find_ranks()) == asked.nodes * asked.ranks)

    before = -1 if asked.anywhere else training.newest()
    until(
        lambda: is_over() or (training.newest() > before and is_there()),
        f"a generation of launch {launch}",
        START_LIMIT_S,
    )
    time.sleep(rng.random() * (max(2 * asked.every_s, LEAST_S) + (ANYWHERE_S if asked.anywhere else 0.0)))
    ranks = training.find_ranks()
    if is_over():
        return None
    if len(ranks) < asked.nodes * asked.ranks:
        return 0
    launch, newest, whom = training.launch(), training.newest(), rng.choice(asked.whom.split(","))
    killed = rng.sample(sorted(ranks), rng.choice([1, 1, 2])) if whom == "ranks" else []
    for rank in killed:
        os.kill(ranks[rank], signal.SIGKILL)
    ended = {"daemon": [rng.choice(training.nodes)], "leader": ["leader"]}.get(whom, [])
    ended = [rng.choice(training.nodes), "leader"] if whom == "both" else ended
    for name in ended:
        training.kill(name)
        time.sleep(rng.random() * 0.1)
    judged = judge(training.own, rejected) if not asked.dcp else 0
    time.sleep(rng.random() if ended else 0.0)
    for name in ended:
        training.start_again(name)
    training.killed[whom] = training.killed.get(whom, 0) + 1
    if whom == "leader":
        training.await_leader()
        until(lambda: is_over() or training.newest() > newest, f"steps of launch {launch}", START_LIMIT_S)
        kept = training.launch() == launch
        training.note(f"launch {launch}: leader killed, {'the training went on' if kept else 'LAUNCHED AGAIN'}")
        log.append(0.0)
        return judged
    until(lambda: training.launch() > launch, f"the launch after {launch}", START_LIMIT_S)
    who = f"ranks {killed}" if killed else " and ".join(ended)
    note_redone(training, launch, who, log)
    return judged


def note_redone(training: Training, launch: int, who: str, log: list[float]) -> None:
    """Print how far a launch came before it was ended, and from where all ranks resumed."""
    made = training.records(launch)
    resumed = STEP_NUMBER.fullmatch(Path(str(training.state().get("resumed"))).name)
    if resumed is None or not made:
        training.note(f"launch {launch}: {who} killed, resumed from {training.state().get('resumed')}")
        log.append(float("inf"))
        return
    at_step, (last, last_s) = int(resumed[1]), made[-1]
    at_s = max((seconds for step, seconds in made if step <= at_step), default=made[0][1])
    log.append(last_s - at_s)
    training.note(
        f"launch {launch}: {who} killed after step {last}, all resumed from {at_step}: "
        f"{last - at_step} steps, {last_s - at_s:.2f} s to redo"
    )


def let_finish(training: Training) -> None:
    """End all ranks, and have the next launch end after the next epochs."""
    asked = training.asked
    until(lambda: len(training.find_ranks()) == asked.nodes * asked.ranks, "all ranks", START_LIMIT_S)
    for pid in training.find_ranks().values():
        os.kill(pid, signal.SIGKILL)
    batches = math.ceil(math.ceil(ROWS / (asked.nodes * asked.ranks)) / BATCH)
    part = training.folder / "epochs.part"
    part.write_text(str(training.newest() + 2 * batches if asked.framework else training.newest() // batches + 2))
    part.rename(training.folder / "epochs")


def judge(folder: Path, rejected: list[str]) -> int:
    """Prove every generation of a folder that stays there meanwhile; return how many those are."""
    judged = 0
    for path in sorted(folder.glob("step-????????????")):
        manifest = path / "rocm-shards.json"
        answer = prove.prove(str(manifest))
        if manifest.exists():  # else it was removed for a newer one meanwhile
            judged += 1
            if answer["verdict"] != "proven" or answer["step"] != int(path.name[5:]):
                rejected.append(f"{path}: {answer['reason']} (step {answer['step']})")
    return judged


def compare_states(folder: Path) -> list[str]:
    """Return where a rank's state or data first differed from the undisturbed run's in each launch."""
    wanted = {}
    for path in folder.glob("alone-states-*"):
        for _, rank, step, *state in map(str.split, path.read_text().splitlines()):
            wanted[rank, step] = state
    found: dict[tuple[str, str], str] = {}
    read, compared = 0, 0
    for path in folder.glob("states-*"):
        for epoch, rank, step, *state in map(str.split, path.read_text().splitlines()):
            # What was loaded has no data. At step 0 there are no moments yet, or those of `get_state_dict`.
            known = wanted.get((rank, step))
            read, compared = read + 1, compared + (known is not None)
            if known is not None and (state[0] != known[0] or state[1] not in ("-", known[1])):
                what = "loaded" if state[1] == "-" else "data" if state[1] != known[1] else "state"
                found.setdefault((epoch, rank), f"launch {epoch}, rank {rank}: {what} differs first at step {step}")
    if read and not compared:
        return [f"none of {read} states could be compared: the undisturbed run wrote none of their steps"]
    return [found[key] for key in sorted(found)]


def measure(asked: argparse.Namespace, folder: Path, network: Network) -> int:
    """Disturb a training until it finishes; return 0 where its end equals that of the other."""
    wanted = run_alone(asked, folder, []) if asked.dcp else []
    training, rng = Training(folder, network, asked), random.Random(asked.seed)
    redone: list[float] = []
    rejected: list[str] = []
    judged, began = 0, time.perf_counter()
    training.note("all daemons started")
    try:
        while len(redone) < asked.kills and time.perf_counter() - began < asked.limit_s:
            proven = kill_once(training, rng, redone, rejected)
            if proven is None:
                break
            judged += proven
        if not asked.dcp:
            let_finish(training)
        training.note(f"killed {training.killed}, {judged} generations judged, {len(rejected)} torn or mixed")
        until(lambda: training.state().get("stage") == "over", "the end of the training", 1200.0)
        found = training.digests()
        path = folder / "leader" / "incidents.jsonl"
        history = path.read_text().splitlines() if path.exists() else []
    finally:
        training.close()
    wanted = wanted or run_alone(asked, folder, training.launchers[0] if asked.warm else [])
    incidents, steps = {json.loads(line)["id"] for line in history}, training.state().get("steps")
    middle = sorted(redone)[len(redone) // 2] if redone else 0.0
    kind = asked.framework or ("FSDP2" if asked.fsdp or asked.dcp else "DDP")
    kind += ", own checkpoints" if asked.dcp else ""
    print(
        f"{kind}, {asked.nodes} nodes x {asked.ranks} ranks, a snapshot each {asked.every_s} s, steps of at least "
        f"{asked.step_s} s: {len(redone)} kills {training.killed}, {len(incidents)} incidents, redone at most "
        f"{max(redone, default=0.0):.2f} s, median {middle:.2f} s; {judged} generations judged, {len(rejected)} "
        f"torn or mixed; {steps} steps; the "
        f"end is {'equal' if found == wanted else 'NOT EQUAL'} bit by bit ({time.perf_counter() - began:.0f} s)"
    )
    differing = [*rejected[:5], *compare_states(folder)]
    if found != wanted or differing:
        print("\n".join(["wanted", *wanted, "found", *found, *differing]))
    return 0 if found == wanted and not differing else 1


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--whom", default="ranks", help="drawn from these for each kill")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="kill nobody after that")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every-s", type=float, default=2.0)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fsdp", action="store_true", help="weights spread by FSDP2 in place of replicas")
    parser.add_argument(
        "--dcp", action="store_true", help="FSDP2 that saves by itself, with torch.distributed.checkpoint"
    )
    parser.add_argument(
        "--framework", default="", help="of `fleet_frameworks.py`; all but `trainer` save by themselves"
    )
    parser.add_argument(
        "--anywhere", action="store_true", help="kill while ranks import, join and load too, not after a save alone"
    )
    parser.add_argument("--fork", action="store_true", help="fork ranks from torchrun: torch is imported once a node")
    parser.add_argument("--warm", action="store_true", help="fork ranks from an interpreter of each node")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    asked.dcp = asked.dcp or asked.framework not in ("", "trainer")
    asked.epochs = int((asked.kills + 1) * 2.5 * asked.every_s / asked.step_s / BATCHES)
    network, folder = Network(asked.nodes), Path(tempfile.mkdtemp(prefix="fleet-resumes-"))
    try:
        return measure(asked, folder, network)
    finally:
        network.close()
        print(f"kept in {folder}" if asked.keep else "", end="\n" if asked.keep else "")
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
