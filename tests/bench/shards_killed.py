"""Kills ranks of a training at random moments while they write snapshots, and counts what is torn, mixed or lost.

python tests/bench/shards_killed.py --train-python PYTHON --kills 200                # FSDP2, 2 ranks, two folders
python tests/bench/shards_killed.py --train-python PYTHON --kills 20 --ddp           # replicas
python tests/bench/shards_killed.py --train-python PYTHON --kills 20 --machines      # a rank on each of two machines

A snapshot is due at every step, so that nearly every moment is one of a write. After each kill every generation that
lies in a folder is proven; the next launch resumes from the newest. At the end the training goes on to the end of an
epoch, and its weights and moments are compared, bit by bit, with those of a run that nobody disturbed.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from supervisor.agent import prove  # noqa: E402 (after the path is set)
from supervisor.core import attempt_files as at  # noqa: E402

PROGRAM = ROOT / "tests/agent/own_shards.py"
ZYGOTE = Path(__file__).with_name("shards_zygote.py")
AGENT = ROOT / "supervisor/agent/path"
ROWS, BATCH = 62, 4
"""What the program trains on, and how much of it each rank takes a step."""
GENERATIONS = ("step-????????????", "step-????????????.pt")
LAUNCH_LIMIT_S = 120.0


class Launches:
    """Launches of one training, each a new attempt that resumes from the newest generation."""

    def __init__(self, python: str, folder: Path, asked: argparse.Namespace) -> None:
        self.folder, self.asked, self.number = folder, asked, 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCM_SUPERVISOR")}
        self._zygote = subprocess.Popen(
            [python, str(ZYGOTE), str(AGENT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        self.snapshots, self.elsewhere = folder / "snapshots", folder / "elsewhere"
        for path in (self.snapshots, self.elsewhere):
            path.mkdir(parents=True)

    @property
    def main(self) -> Path:
        """The folder from which a launch resumes."""
        return self.elsewhere if self.asked.machines else self.snapshots

    def generations(self) -> list[Path]:
        """Return all generations that lie in a folder."""
        folders = (self.snapshots, self.elsewhere)
        return sorted(path for folder in folders for pattern in GENERATIONS for path in folder.glob(pattern))

    def newest(self) -> Path | None:
        """Return the generation from which the next launch resumes."""
        found = [path for path in self.generations() if path.parent == self.main]
        return max(found, key=lambda path: path.name[:17], default=None)

    def start(self, epochs: int, *, every: str) -> list[int]:
        """Start the ranks of the next launch and return their pids."""
        self.number += 1
        newest = self.newest()
        ranks = []
        folder = self.folder / "attempts" / str(self.number) / at.RUN
        folder.mkdir(parents=True)
        (folder / at.RECORDER.partition("/")[2]).touch()
        for rank in range(self.asked.ranks):
            here = 1 if self.asked.machines else self.asked.ranks
            ranks.append(
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(self.asked.ranks),
                    "LOCAL_RANK": str(rank % here),
                    "LOCAL_WORLD_SIZE": str(here),
                    "MEETING": str(folder / "meeting"),
                    at.ENV_FOLDER: str(folder if not self.asked.machines else self._machine(folder, rank)),
                    at.ENV_SNAPSHOTS: str(self.snapshots),
                    at.ENV_SNAPSHOT_EVERY: every,
                    at.ENV_REPLICAS: str(self.elsewhere),
                    at.ENV_EPOCH: str(self.number),
                    at.ENV_RESUME_FROM: str(newest or ""),
                }
            )
        asked = {
            "program": str(PROGRAM),
            "argv": [
                "--data",
                str(ROWS),
                "--epochs",
                str(epochs),
                *(["--ddp"] if self.asked.ddp or self.asked.machines else []),
            ],
            "output": str(folder / "output.log"),
            "folder": ranks[0][at.ENV_FOLDER],
            "ranks": ranks,
        }
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(asked) + "\n")
        self._zygote.stdin.flush()
        return list(self._answer()["pids"])

    def _machine(self, folder: Path, rank: int) -> Path:
        made = folder / f"machine{rank}" / at.RUN
        made.mkdir(parents=True)
        return made

    def wait(self) -> list[int]:
        """Return the statuses of the ranks once all have ended."""
        assert self._zygote.stdin is not None
        self._zygote.stdin.write("reap\n")
        self._zygote.stdin.flush()
        return list(self._answer()["statuses"])

    def _answer(self) -> dict[str, Any]:
        assert self._zygote.stdout is not None
        return dict(json.loads(self._zygote.stdout.readline()))

    def output(self) -> str:
        """Return what the newest launch printed."""
        return (self.folder / "attempts" / str(self.number) / at.RUN / "output.log").read_text()

    def finish(self, epochs: int) -> list[str]:
        """Train to the end of an epoch and return what each rank ended with."""
        self.start(epochs, every="0")
        statuses = self.wait()
        found = sorted(line for line in self.output().splitlines() if line.startswith("DIGEST"))
        if any(statuses) or len(found) != self.asked.ranks:
            raise SystemExit(f"{statuses}\n{self.output()[-3000:]}")
        return found

    def end(self) -> None:
        """End the interpreter that forks."""
        self._zygote.kill()
        self._zygote.wait()


def step_of(path: Path | None) -> int:
    """Return the step of a generation, 0 for none."""
    return int(path.name[5:17]) if path is not None else 0


def kill_one(launched: Launches, rng: random.Random, epochs: int) -> tuple[str, int]:
    """Start, kill after the launch has made progress, and return who was killed and the step that it had reached."""
    before = step_of(launched.newest())
    pids = launched.start(epochs, every="0.001")
    until_s = time.perf_counter() + LAUNCH_LIMIT_S
    while step_of(launched.newest()) <= before and time.perf_counter() < until_s:
        time.sleep(0.002)
    time.sleep(rng.random() * 0.3)
    who = rng.choice([*range(len(pids)), "all"])
    for pid in pids if who == "all" else [pids[int(who)]]:
        os.kill(pid, signal.SIGKILL)
    time.sleep(rng.random() * 0.05)
    for pid in pids:  # the daemon's own stop
        os.kill(pid, signal.SIGKILL)
    launched.wait()
    return str(who), step_of(launched.newest())


def judge(launched: Launches, rejected: list[str]) -> int:
    """Prove every generation that lies there; return how many there are."""
    found = launched.generations()
    for path in found:
        answer = prove.prove(str(path / "rocm-shards.json" if path.is_dir() else path))
        if answer["verdict"] != "proven" or answer["step"] != step_of(path):
            rejected.append(f"{path}: {answer['reason']} (step {answer['step']})")
    return len(found)


def main() -> int:
    """Print the counts; end with 1 where anything was torn, mixed or not equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", default=os.environ.get("ROCM_SUPERVISOR_TRAIN_PYTHON"), required=False)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--machines", action="store_true", help="each rank is on a machine of its own")
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="shards-killed-"))
    launched = Launches(asked.train_python, place / "killed", asked)
    alone = Launches(asked.train_python, place / "alone", asked)
    try:
        return measure(launched, alone, asked)
    finally:
        launched.end()
        alone.end()
        shutil.rmtree(place)


def measure(launched: Launches, alone: Launches, asked: argparse.Namespace) -> int:
    """Kill, judge, finish and compare."""
    rng = random.Random(asked.seed)
    rejected: list[str] = []
    proven = drafts = 0
    killed: dict[str, int] = {}
    for number in range(asked.kills):
        who, step = kill_one(launched, rng, epochs=100_000)
        killed[who] = killed.get(who, 0) + 1
        drafts += sum(1 for folder in (launched.snapshots, launched.elsewhere) for _ in folder.glob("*part*"))
        proven += judge(launched, rejected)
        if number % 20 == 19:
            print(f"{number + 1} kills: step {step}, {proven} generations judged, {len(rejected)} rejected", flush=True)
    batches = math.ceil(math.ceil(ROWS / asked.ranks) / BATCH)
    epochs = step_of(launched.newest()) // batches + 2
    same = launched.finish(epochs) == alone.finish(epochs)
    kind = "DDP on two machines" if asked.machines else "DDP" if asked.ddp else "FSDP2"
    print(
        f"{kind}, {asked.ranks} ranks: {asked.kills} kills {dict(sorted(killed.items()))}, {drafts} unfinished drafts "
        f"seen, {proven} generations judged, {len(rejected)} torn or mixed; after {epochs * batches} steps weights "
        f"and moments {'equal' if same else 'DIFFER from'} an undisturbed run's bit by bit"
    )
    for line in rejected[:5]:
        print(line)
    return 0 if same and not rejected else 1


if __name__ == "__main__":
    sys.exit(main())
