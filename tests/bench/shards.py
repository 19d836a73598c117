"""Measures what a snapshot of FSDP2's weights costs the training, beside torch.distributed.checkpoint in the same run.

    python tests/bench/shards.py --train-python PYTHON [--ranks 2] [--runs 3] [--device cuda]

A snapshot's cost is what the step's boundary takes, the slowest of all ranks, at the steps of which a generation was
made; torch's is `dcp.save` on the same state, and what `dcp.async_save` takes before it returns. With gloo on a CPU;
with `--device cuda` under NCCL, a GPU for each rank, or with gloo where there are fewer, and what is enqueued on them
counts too.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from supervisor.core import attempt_files as at  # noqa: E402 (after the path is set)

TRAINING = Path(__file__).with_name("sharded_training.py")
LIMIT = 1 / 50


def run(asked: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], set[int]]:
    """Return what each rank found, and the steps of the generations that were made."""
    (folder / "snapshots").mkdir()
    (folder / at.RUN).mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCM_SUPERVISOR")}
    environment |= {
        "PYTHONPATH": str(ROOT / "supervisor/agent/path"),
        "OMP_NUM_THREADS": "1",
        at.ENV_FOLDER: str(folder / at.RUN),
        at.ENV_SNAPSHOTS: str(folder / "snapshots"),
        at.ENV_SNAPSHOT_EVERY: "0.5",
    }
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(asked.ranks), str(TRAINING)]
    options = ["--steps", str(asked.steps), "--layers", str(asked.layers), "--width", str(asked.width)]
    options += ["--device", asked.device]
    command = [asked.train_python, *words, *options]
    finished = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    line = next((item for item in finished.stdout.splitlines() if item.startswith("FOUND")), None)
    if line is None:
        sys.exit(finished.stdout[-2000:] + finished.stderr[-3000:])
    reports = [json.loads(item) for item in (folder / at.AGENT).read_text().splitlines()]
    failed = [report for report in reports if report["event"] in ("save_failed", "hook_failed")]
    if failed:
        print(json.dumps(failed)[:500])
    return json.loads(line[len("FOUND") :]), {
        report["step"] for report in reports if report["event"] == "checkpoint_saved"
    }


def _slowest(found: list[dict[str, Any]], kind: str, part: int) -> list[float]:
    """Return one time of each save, that of the slowest rank."""
    return [max(rank[part] for rank in ranks) for ranks in zip(*(each[kind] for each in found), strict=True)]


def _span(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:.2f} ms ({min(times) * 1e3:.2f}-{max(times) * 1e3:.2f})"


def main() -> int:
    """Print each run's figures beside the limit; end with 1 where one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", default=os.environ.get("ROCM_SUPERVISOR_TRAIN_PYTHON"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=72)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: NCCL, if each rank has a GPU")
    asked = parser.parse_args()
    missed = 0
    for number in range(asked.runs):
        with tempfile.TemporaryDirectory() as folder:
            found, steps = run(asked, Path(folder))
        rows = list(zip(*(each["boundaries"] for each in found), strict=True))
        slowest = {ranks[0][0]: [max(rank[part] for rank in ranks) for part in (1, 2)] for ranks in rows}
        taken = [took for step, (took, _) in slowest.items() if step in steps]
        others = [took for step, (took, _) in slowest.items() if step not in steps]
        used = statistics.median(used for step, (_, used) in slowest.items() if step in steps)
        saves = [_slowest(found, "saves", part) for part in range(3)]
        snapshot, full = statistics.median(taken), statistics.median(saves[1])
        missed += snapshot > LIMIT * full
        print(
            f"run {number + 1}: {found[0]['bytes'] / 1e6:.0f} MB, {asked.ranks} ranks, {found[0]['runs_on']}, torch "
            f"{found[0]['torch']}, load {os.getloadavg()[0]:.1f}: "
            f"snapshot {_span(taken)} ({len(taken)} of them; of a processor {used * 1e3:.2f} ms), another boundary "
            f"{statistics.median(others) * 1e3:.3f} ms; dcp.save {_span(saves[1])} (of a processor, with its state, "
            f"{statistics.median(saves[2]) * 1e3:.0f} ms), its state {_span(saves[0])}, dcp.async_save "
            f"{_span(_slowest(found, 'waits', 1))}; snapshot / dcp.save = 1/{full / snapshot:.0f}, limit 1/50",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
