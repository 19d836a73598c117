"""Kills deterministic trainings at random and compares their last weights with those of uninterrupted ones, bit by bit.

    python tests/bench/exact_resumes.py --train-python PYTHON [--kills 20] [--only loop lightning ...]

PYTHON's environment has what is asked for: torch, ultralytics, transformers with accelerate, lightning. Each training
is killed by SIGKILL `--kills` times in all; each time it goes on from its newest snapshot, whole or not at all. Kinds
that end in -ddp are two ranks, of which either dies, and the weights of both are compared: on the processor, joined by
gloo, or with --gpus on two GPUs, joined by NCCL:

    python tests/bench/exact_resumes.py --gpus --kills 6 --only ultralytics-ddp loop-ddp

With --workers N all loaders but that of loop-ddp have so many workers, which draw their random numbers themselves.

With --anywhere the kill comes at any moment from the first batch to the end of the process, validations, saves and the
final validation included; the frameworks save by themselves too, and where to go on from is chosen as the daemon does.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.agent.prove import prove as prove_file
from supervisor.core import attempt_files as at
from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict, given_between
from supervisor.daemon.checkpoints.candidates import Search, find, fingerprint

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
LOOP_STEPS = 96
"""12 epochs of 8."""
DRAW = HERE.parent / "agent" / "draw_images.py"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one process of a training ended."""

    code: int
    died: bool
    digest: str | None
    resumed_step: int | None
    output: str
    trained_s: float = 0.0
    """From the first batch to the end of the process."""
    step_s: float = 1.0
    """The median time between two steps."""


class Training:
    """One kind of training, in a folder of its own."""

    def __init__(
        self, kind: str, python: str, folder: Path, *, gpus: bool, every_s: str = "0.01", workers: int = 0
    ) -> None:
        self.kind, self.python, self.folder, self.every_s = kind, python, folder, every_s
        self._workers = ["--workers", str(workers)] if workers and kind != "loop-ddp" else []
        self.saves = False
        """Whether the framework saves by itself, and the daemon's choice is made among all of it."""
        self._gpus = ["--gpus"] if gpus and kind.endswith("-ddp") else []
        self.steps_per_s: float | None = None
        """As the whole training made them."""
        self.runs = 0
        self._attempts: dict[str, list[Path]] = {}
        folder.mkdir()
        if kind.startswith("ultralytics"):
            images = "22" if kind.endswith("-ddp") else "11"
            subprocess.run([python, str(DRAW), str(folder / "data"), images, "64"], check=True)

    def run(self, name: str, die_after: int, *, resume: bool, dying_rank: int = 0, die_in_s: float = 0.0) -> Ended:
        """Run it, from its newest snapshot if `resume`, until it ends or has died."""
        attempt, snapshots = self.folder / f"attempt-{self.runs}" / "run", self.folder / f"snapshots-{name}"
        self.runs += 1
        attempt.mkdir(parents=True)
        snapshots.mkdir(exist_ok=True)
        newest = max(snapshots.glob("step-*.pt"), default=None) if resume else None
        if resume and self.saves:
            newest = self._chosen(name, snapshots)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("ROCM_SUPER", "PYTHON"))
        }
        environment |= {
            "PYTHONPATH": str(AGENT),
            "ROCM_SUPERVISOR_ATTEMPT_DIR": str(attempt),
            "ROCM_SUPERVISOR_SNAPSHOTS": str(snapshots),
            "ROCM_SUPERVISOR_SNAPSHOT_EVERY_S": self.every_s if resume else "0",
            "ROCM_SUPERVISOR_RESUME_FROM": str(newest or ""),
            "DYING_RANK": str(dying_rank),
            "DYING_IN_S": str(die_in_s),
            "DYING_PACE_S": "0.05" if self.saves else "",
            "OMP_NUM_THREADS": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it a GPU's sums differ from run to run
            "HOME": str(self.folder),
            "YOLO_CONFIG_DIR": str(self.folder),
            "YOLO_OFFLINE": "true",
            "HF_HUB_OFFLINE": "1",
        }
        code, output = self._ran(["--die-after", str(die_after), *self._options(name)], environment)
        (attempt / "ended").touch()
        self._attempts.setdefault(name, []).append(attempt)
        message = [json.loads(line) for line in (attempt / "agent.jsonl").read_text().splitlines()]
        failures = [report for report in message if report["event"] in ("hook_failed", "save_failed")]
        resumed = [report["step"] for report in message if report["event"] == "resumed"]
        died = (attempt / "died").exists() or code == -signal.SIGKILL
        return Ended(
            code=1 if failures and not died else code,
            died=died,
            digest="\n".join(sorted(line for line in output.splitlines() if line.startswith("DIGEST"))) or None,
            resumed_step=resumed[-1] if resumed else None,
            output=f"{output[-4000:]}\n{failures}",
            step_s=step_s(attempt / "recorder.bin"),
            trained_s=lasted_s(attempt / "began", attempt / "ended"),
        )

    def _chosen(self, name: str, snapshots: Path) -> Path | None:
        """Return what the daemon would go on from, of all that this training has saved."""
        reported: dict[str, Checkpoint] = {}
        for attempt in self._attempts.get(name, []):
            for line in (attempt / "agent.jsonl").read_text().splitlines():
                message = json.loads(line)
                for path in message["paths"] if message["event"] == "checkpoint_saved" else ():
                    stat = fingerprint(Path(path))
                    if stat is not None and stat.modified_ns / 1e9 <= message["unix_s"] + 1.0:
                        kind = message.get("kind", "checkpoint")
                        reported[path] = Checkpoint(
                            path=path, fingerprint=stat, epoch=message["epoch"], step=message["step"], kind=kind
                        )
        search = Search(
            known=tuple(reported.values()),
            globs=(str(self.folder / name / "**" / "*.ckpt"), str(snapshots / "*.pt")),
            cwd=str(self.folder),
            fault_unix_s=None,
            fault_step=None,
            batches_per_epoch=None,
            snapshots=str(snapshots),
            given=given_between(float(self.every_s), self.steps_per_s),
        )
        point = find(search, proof, lambda _: None)
        if not point.possible:
            sys.exit(f"{self.kind}: {point.reason}")
        return None if point.checkpoint is None else Path(point.checkpoint.path)

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
                if environment["DYING_IN_S"] != "0.0" and self.kind == "loop":  # it knows nothing of dying in time
                    self._kill_later(started, environment)
                code = started.wait(LIMIT_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
        return code, printed.read_text(errors="replace")

    def _kill_later(self, started: subprocess.Popen[bytes], environment: dict[str, str]) -> None:
        """Kill a training so many seconds after its first step."""
        recorder = Path(environment["ROCM_SUPERVISOR_ATTEMPT_DIR"], "recorder.bin")
        while started.poll() is None and not (recorder.exists() and head_of(recorder)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(0.01)
        (recorder.parent / "began").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(float(environment["DYING_IN_S"]))
        started.kill()

    def _options(self, name: str) -> list[str]:
        if self.kind.startswith("loop"):
            return ["--epochs", "12", "--step-s", "0.03", *self._workers, *self._gpus]
        options = ["--folder", str(self.folder / name), *self._workers, *self._gpus]
        if self.kind == "lightning-ddp":
            return [*options, "--ranks", "2"]
        if self.saves and not self.kind.startswith("ultralytics"):
            options.append("--saves")
        if self.kind.startswith("ultralytics"):
            return [*options, "--data", str(self.folder / "data" / "data.yaml")]
        return options


def head_of(recorder: Path) -> int:
    """Return how many steps a recorder holds."""
    with recorder.open("rb") as file:
        header = file.read(at.HEADER_BYTES)
    return int(at.HEAD.unpack_from(header, at.HEAD_OFFSET)[0]) if len(header) == at.HEADER_BYTES else 0


def step_s(recorder: Path) -> float:
    """Return the median seconds between two steps of a recorder, 1 where it has none."""
    if not recorder.exists():
        return 1.0
    data = recorder.read_bytes()
    head = min(at.HEAD.unpack_from(data, at.HEAD_OFFSET)[0], at.CAPACITY_DEFAULT)
    times = [at.RECORD.unpack_from(data, at.HEADER_BYTES + at.RECORD.size * number)[2] / 1e9 for number in range(head)]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times)) if head > 1 else 1.0


def lasted_s(began: Path, ended: Path) -> float:
    """Return the seconds between two files, 0 where the first was not written."""
    return ended.stat().st_mtime - began.stat().st_mtime if began.exists() else 0.0


def proof(path: Path) -> Checkpoint:
    """Return what the prover says of a file."""
    stat, answer = fingerprint(path), prove_file(str(path))
    if stat is None:
        raise FileNotFoundError(path)
    verdict, epoch, step = Verdict(str(answer["verdict"])), answer["epoch"], answer["step"]
    return Checkpoint(
        path=str(path),
        fingerprint=stat,
        verdict=verdict,
        reason=str(answer["reason"]),
        epoch=epoch if isinstance(epoch, int) else None,
        step=step if isinstance(step, int) else None,
    )


def prove_anywhere(training: Training, kills: int, chance: random.Random) -> bool:
    """As `prove`, with the kills at any moment."""
    training.saves = True
    uninterrupted = training.run("whole", 0, resume=False)
    if uninterrupted.code or uninterrupted.digest is None:
        sys.exit(f"{training.kind}: {uninterrupted.output}")
    if training.kind == "loop":
        uninterrupted = replace(uninterrupted, trained_s=uninterrupted.step_s * LOOP_STEPS)
    training.steps_per_s = 1 / uninterrupted.step_s
    made, rounds, resumed = 0, 0, 0
    moments: list[tuple[int | None, float]] = []
    """Of each kill, the step that was gone on from and the seconds to the kill."""
    while made < kills:
        name, rounds = f"killed-{rounds}", rounds + 1
        while True:
            # More often near the end than anywhere else, for that is where a training saves, validates and strips.
            in_s = uninterrupted.trained_s * chance.uniform(0.05, 1.0) ** 0.7 if made < kills else 0.0
            ended = training.run(name, 0, resume=True, die_in_s=in_s)
            resumed += ended.resumed_step is not None
            if not ended.died:
                break
            made += 1
            moments.append((ended.resumed_step, round(in_s, 2)))
        if ended.code:
            sys.exit(f"{training.kind}: {ended.output}")
        if ended.digest != uninterrupted.digest:
            print(f"{training.kind:16} NOT EQUAL after {made} kills, {resumed} resumes, {moments}")
            print(f"whole:\n{uninterrupted.digest}\nkilled:\n{ended.digest}")
            return False
    text = f"{made} kills at any moment of {uninterrupted.trained_s:.1f} s over {rounds} trainings, {resumed} resumes"
    print(f"{training.kind:16} bit-equal: {text}", flush=True)
    return True


def prove(training: Training, kills: int, chance: random.Random) -> bool:
    """Run a training whole and run it killed; print and return whether they end in the same bits.

    A training that comes to its end before all kills begins anew, to be killed again.
    """
    uninterrupted = training.run("whole", 0, resume=False)
    if uninterrupted.code or uninterrupted.digest is None:
        sys.exit(f"{training.kind}: {uninterrupted.output}")
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
        if ended.digest != uninterrupted.digest:
            print(f"{training.kind:16} NOT EQUAL after {made} kills, {resumed} resumes")
            print(f"whole:\n{uninterrupted.digest}\nkilled:\n{ended.digest}")
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
    parser.add_argument("--anywhere", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--keep", help="an empty folder to work in, which is left for a look")
    parser.add_argument("--every-s", default=None)
    asked = parser.parse_args()
    with contextlib.nullcontext(asked.keep) if asked.keep else tempfile.TemporaryDirectory() as place:
        every_s = asked.every_s or ("0.5" if asked.anywhere else "0.01")
        trainings = [
            Training(
                kind, asked.train_python, Path(place) / kind, gpus=asked.gpus, every_s=every_s, workers=asked.workers
            )
            for kind in asked.only
        ]
        check = prove_anywhere if asked.anywhere else prove
        proven = [check(training, asked.kills, random.Random(asked.seed)) for training in trainings]
    sys.exit(0 if all(proven) else 1)


if __name__ == "__main__":
    main()
