"""Kills deterministic trainings at random and compares their last weights with those of uninterrupted ones, bit by bit.

    python tests/bench/exact_resumes.py --train-python PYTHON [--kills 20] [--only loop lightning ...]

PYTHON's environment has what is asked for: torch, ultralytics, transformers with accelerate, lightning. Each training
is killed by SIGKILL `--kills` times in all; each time it goes on from its newest snapshot, whole or not at all. Kinds
that end in -ddp are two ranks, of which either dies, and the weights of both are compared: on the processor, joined by
gloo, or with --gpus on two GPUs, joined by NCCL:

    python tests/bench/exact_resumes.py --gpus --kills 6 --only ultralytics-ddp loop-ddp
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
AGENT = HERE.parents[1] / "supervisor" / "agent" / "path"
SCRIPTS = {
    "loop": HERE.parent / "agent" / "own_loop.py",
    "ultralytics": HERE / "exact_ultralytics.py",
    "transformers": HERE / "exact_transformers.py",
    "lightning": HERE / "exact_lightning.py",
    "loop-ddp": HERE.parent / "agent" / "own_ranks.py",
    "ultralytics-ddp": HERE / "exact_ultralytics.py",
    "transformers-ddp": HERE / "exact_transformers.py",
    "lightning-ddp": HERE / "exact_lightning.py",
}
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
LIMIT_S = 600
DRAW = HERE.parent / "agent" / "draw_images.py"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one process of a training ended."""

    code: int
    died: bool
    digest: str | None
    resumed_step: int | None
    output: str


class Training:
    """One kind of training, in a folder of its own."""

    def __init__(self, kind: str, python: str, folder: Path, *, gpus: bool) -> None:
        self.kind, self.python, self.folder = kind, python, folder
        self._gpus = ["--gpus"] if gpus and kind.endswith("-ddp") else []
        self.runs = 0
        folder.mkdir()
        if kind.startswith("ultralytics"):
            images = "22" if kind.endswith("-ddp") else "11"
            subprocess.run([python, str(DRAW), str(folder / "data"), images, "64"], check=True)

    def run(self, name: str, die_after: int, *, resume: bool, dying_rank: int = 0) -> Ended:
        """Run it, from its newest snapshot if `resume`, until it ends or has died."""
        attempt, snapshots = self.folder / f"attempt-{self.runs}", self.folder / f"snapshots-{name}"
        self.runs += 1
        attempt.mkdir()
        snapshots.mkdir(exist_ok=True)
        newest = max(snapshots.glob("step-*.pt"), default=None) if resume else None
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("ROCM_SUPER", "PYTHON"))
        }
        environment |= {
            "PYTHONPATH": str(AGENT),
            "ROCM_SUPERVISOR_ATTEMPT_DIR": str(attempt),
            "ROCM_SUPERVISOR_SNAPSHOTS": str(snapshots),
            "ROCM_SUPERVISOR_SNAPSHOT_EVERY_S": "0.01" if resume else "0",
            "ROCM_SUPERVISOR_RESUME_FROM": str(newest or ""),
            "DYING_RANK": str(dying_rank),
            "OMP_NUM_THREADS": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it a GPU's sums differ from run to run
            "HOME": str(self.folder),
            "YOLO_CONFIG_DIR": str(self.folder),
            "YOLO_OFFLINE": "true",
            "HF_HUB_OFFLINE": "1",
        }
        code, output = self._ran(["--die-after", str(die_after), *self._options(name)], environment)
        said = [json.loads(line) for line in (attempt / "agent.jsonl").read_text().splitlines()]
        failures = [one for one in said if one["event"] in ("hook_failed", "save_failed")]
        resumed = [one["step"] for one in said if one["event"] == "resumed"]
        died = (attempt / "died").exists() or code == -signal.SIGKILL
        return Ended(
            code=1 if failures and not died else code,
            died=died,
            digest="\n".join(sorted(line for line in output.splitlines() if line.startswith("DIGEST"))) or None,
            resumed_step=resumed[-1] if resumed else None,
            output=f"{output[-4000:]}\n{failures}",
        )

    def _ran(self, options: list[str], environment: dict[str, str]) -> tuple[int, str]:
        """Return how the script ended and what it printed; of its processes none is left."""
        launcher = LAUNCHER if self.kind.endswith("-ddp") and self.kind != "lightning-ddp" else []
        printed = self.folder / "output.txt"
        with printed.open("w") as file:  # a pipe would be held open by a rank that outlives the one that started it
            started = subprocess.Popen(
                [self.python, *launcher, str(SCRIPTS[self.kind]), *options],
                env=environment, cwd=self.folder, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = started.wait(LIMIT_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
        return code, printed.read_text(errors="replace")

    def _options(self, name: str) -> list[str]:
        if self.kind.startswith("loop"):
            return ["--epochs", "12", "--step-s", "0.03", *self._gpus]
        options = ["--folder", str(self.folder / name), *self._gpus]
        if self.kind == "lightning-ddp":
            return [*options, "--ranks", "2"]
        if self.kind.startswith("ultralytics"):
            return [*options, "--data", str(self.folder / "data" / "data.yaml")]
        return options


def prove(training: Training, kills: int, chance: random.Random) -> bool:
    """Run a training whole and run it killed; print and return whether they end in the same bits.

    A training that comes to its end before all kills begins anew, to be killed again.
    """
    whole = training.run("whole", 0, resume=False)
    if whole.code or whole.digest is None:
        sys.exit(f"{training.kind}: {whole.output}")
    made, rounds, resumed = 0, 0, 0
    while made < kills:
        name, rounds = f"killed-{rounds}", rounds + 1
        ranks = 2 if training.kind.endswith("-ddp") else 1
        ended = training.run(name, chance.randint(1, 6), resume=True, dying_rank=chance.randrange(ranks))
        while ended.died:
            made += 1
            after = chance.randint(1, 6) if made < kills else 0
            ended = training.run(name, after, resume=True, dying_rank=chance.randrange(ranks))
            resumed += ended.resumed_step is not None
        if ended.code:
            sys.exit(f"{training.kind}: {ended.output}")
        if ended.digest != whole.digest:
            print(f"{training.kind:16} NOT EQUAL after {made} kills, {resumed} resumes")
            print(f"whole:\n{whole.digest}\nkilled:\n{ended.digest}")
            return False
    print(f"{training.kind:16} bit-equal: {made} kills over {rounds} trainings, {resumed} resumes in mid-training")
    return True


def main() -> None:
    """Prove each kind that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--gpus", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        trainings = [Training(kind, asked.train_python, Path(place) / kind, gpus=asked.gpus) for kind in asked.only]
        proven = [prove(one, asked.kills, random.Random(asked.seed)) for one in trainings]
    sys.exit(0 if all(proven) else 1)


if __name__ == "__main__":
    main()
