"""Two GPUs of one machine without NCCL: their speed beside one GPU, gloo and NCCL, and beside what was predicted.

    python tests/bench/two_cards.py --train-python PYTHON [--runs 3] [--steps 20] [--ways host gloo]

Each way trains the same networks, with the same batch on each GPU, by an unmodified script that asks for NCCL; the
agent gives it another backend. `predicted` is what `supervisorctl bench allreduce --mib --step-ms` would say, from one
GPU's step and the mean of a gradient of that size alone. At last, weights after some steps by gloo and by the host.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from supervisor.core import attempt_files as at  # noqa: E402 (after the path is set)

TRAINING = Path(__file__).with_name("two_cards_training.py")
REDUCE = ROOT / "supervisor/agent/bench_machine.py"
CASES = (("resnet50", 256), ("resnet50", 128), ("resnet18", 512), ("vit_b_16", 64))
WAYS = ("nccl", "gloo", "host", "host-bf16")
TARGET = 1.8


def train(python: str, ranks: int, way: str, asked: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return a row for each case; `way` nccl: the script's own backend."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / at.RUN).mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCM_SUPERVISOR")}
        environment |= {"PYTHONPATH": str(ROOT / "supervisor/agent/path"), "OMP_NUM_THREADS": "4"}
        environment |= {at.ENV_FOLDER: str(Path(folder) / at.RUN), at.ENV_RANKS_BACKEND: "" if way == "nccl" else way}
        launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        command = [*launcher, str(TRAINING), json.dumps(asked)]
        ended = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=400
        )
        rows = [json.loads(line[len("FOUND") :]) for line in ended.stdout.splitlines() if line.startswith("FOUND")]
        if ended.returncode != 0:
            print(f"{way}: ended with {ended.returncode}: {ended.stderr[-1500:]}")
        reports = [json.loads(line) for line in (Path(folder) / at.AGENT).read_text().splitlines()]
        for report in reports:
            if report["event"] == "hook_failed":
                print(json.dumps(report)[:500])
    return {(row["network"], row["batch"]): row for row in rows}


def predict(python: str, way: str, size: int, step_ms: float) -> dict[str, Any]:
    """Return what the bench of a mean of so many bytes says."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    facts = json.dumps({"backend": way, "device": "cuda", "mib": max(1, size >> 20), "step_ms": step_ms})
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [python, str(REDUCE), facts], env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    found_row: dict[str, Any] = json.loads(next(line for line in printed[0].splitlines() if line.startswith('{"ms"')))
    return found_row


def main() -> int:
    """Print each run's rows and the medians; end with 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    asked = parser.parse_args()
    wanted = {"cases": CASES, "steps": asked.steps, "digest": False}
    gains: dict[tuple[str, tuple[str, int]], list[float]] = {}
    errors = []
    for run in range(asked.runs):
        alone = train(asked.train_python, 1, "nccl", wanted)
        for way in asked.ways:
            for case, row in train(asked.train_python, 2, way, wanted).items():
                gain = row["images_per_s"] / alone[case]["images_per_s"]
                gains.setdefault((way, case), []).append(gain)
                line = f"run {run + 1}: {way:9} {case[0]:9} batch {case[1]:3}: {alone[case]['ms']:6.1f} ms alone, "
                line += f"{row['ms']:6.1f} ms, {row['images_per_s']:6.0f} images/s, {gain:.2f}x"
                if way == "host":
                    found = predict(asked.train_python, way, row["bytes"], alone[case]["ms"])
                    errors.append(found["speedup"] / gain - 1)
                    line += f"; predicted {found['speedup']:.2f}x ({errors[-1]:+.1%}; {row['bytes'] >> 20} MiB in "
                    line += f"{found['ms']:.1f} ms, the last bucket {found['last_ms']:.1f} ms)"
                print(line, flush=True)
    for (way, case), some in gains.items():
        print(
            f"{way:9} {case[0]:9} batch {case[1]:3}: {statistics.median(some):.2f}x ({min(some):.2f}-{max(some):.2f})"
        )
    if errors:
        print(f"predicted: within {max(map(abs, errors)):.1%} in {len(errors)} cases, target 10 %")
    few = {"cases": [["resnet18", 16]], "steps": 4, "digest": True}
    digests = {way: train(asked.train_python, 2, way, few)["resnet18", 16]["digest"] for way in ("gloo", "host")}
    print("weights by gloo and by the host:", "equal bit by bit" if len(set(digests.values())) == 1 else "DIFFERENT")
    return 0 if min(gains.get(("host", CASES[0]), [0.0])) >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
