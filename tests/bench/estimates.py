"""The estimator against what trainings really take: probes on a GPU, and the count of their tensors without one.

    python -m tests.bench.estimates [--card-gib 20] [--jobs 6] [--only NAME] [--json FILE]

Runs in the interpreter that it is started with, which has torch and the networks' packages, on one NVIDIA or AMD GPU.
For each network: probes as `supervisorctl estimate` makes them, with the card limited to `--card-gib`; then the same
training for TRUE_STEPS steps at the configured micro-batch and at twice that. The largest micro-batch, which is run
before the command names it, is measured by `micro_batches.py`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from supervisor.core.memory.estimate import estimate, next_probe
from supervisor.core.memory.points import Point
from supervisor.runner.memory_probe import Command, WhatIf, probe

HERE = Path(__file__).resolve().parent
MODELS = HERE / "estimates_models.py"
GIB = 1 << 30
TRUE_STEPS = 6
BATCHES = {
    "tv:resnet50": (32, "fp32"),
    "tv:mobilenet_v3_large": (64, "fp32"),
    "tv:convnext_tiny": (32, "bf16"),
    "tv:deeplab": (8, "fp32"),
    "timm:vit_base_patch16_224": (32, "bf16"),
    "timm:efficientnet_b0": (32, "bf16"),
    "timm:swin_tiny_patch4_window7_224": (16, "fp32"),
    "hf:gpt2": (4, "bf16"),
    "hf:bert": (8, "fp32"),
    "hf:t5": (8, "bf16"),
    "hf:qwen3": (2, "bf16"),
    "hf:qwen3_06b": (2, "bf16"),
    "yolo:yolov8n": (8, "fp32"),
}


def probe_points(name: str, *, card_bytes: int, without_gpu: bool) -> list[Point]:
    """Return points as the command chooses them, and at half the micro-batch for a line without a large one."""
    batch, precision = BATCHES[name]
    argv = [sys.executable, str(MODELS), name, str(batch), precision, "9"]
    env = {"OMP_NUM_THREADS": "2", "YOLO_OFFLINE": "true"}
    command = Command(argv=argv, cwd="/tmp", env=env, limit_s=150.0)
    points: list[Point] = []

    def measure(count: int) -> None:
        what_if = WhatIf(batch=count, configured=batch, without_gpu=without_gpu)
        result = probe(command, what_if)
        if result.point is None:
            raise RuntimeError(f"{name} at {count}: {result.problem}\n{result.output[-1500:]}")
        points.append(replace(result.point, other_bytes=0))  # trainings share the GPU here

    for count in (2, 4) if without_gpu else (batch // 2, batch):
        measure(count)
    if not without_gpu and (further := next_probe(points, card_bytes)):
        measure(further)
    return points


def measure_truth(name: str) -> dict[str, Any]:
    """Return what real trainings took, from a process of their own."""
    argv = [sys.executable, str(Path(__file__).resolve()), "--truth", name]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    if ended.returncode != 0:
        raise RuntimeError(f"{name}: {ended.stderr[-1500:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def compare(name: str, card_bytes: int, earlier: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a row: estimates and truths of one network; with the points of an earlier run where there are any."""
    if name in earlier:
        row = earlier[name]
        estimate_row(row, card_bytes)
        row["truth"] = measure_truth(name)
        return row
    batch, precision = BATCHES[name]
    probed = probe_points(name, card_bytes=card_bytes, without_gpu=False)
    counted = probe_points(name, card_bytes=card_bytes, without_gpu=True)
    row = {"name": name, "precision": precision, "batch": batch}
    row.update(points=[asdict(point) for point in probed], counted_points=[asdict(point) for point in counted])
    estimate_row(row, card_bytes)
    row["truth"] = measure_truth(name)
    return row


def estimate_row(row: dict[str, Any], card_bytes: int) -> None:
    """Fill in the estimates that follow from a row's points."""
    batch = row["batch"]
    probed, counted = ([Point(**point) for point in row[name]] for name in ("points", "counted_points"))
    small = [point for point in probed if (point.batch or 0) <= batch]
    row["probe"] = estimate(probed, batch, card_bytes).bytes
    row["predicted"] = estimate(small, 2 * batch, card_bytes).bytes
    row["counted"] = {}
    for count in (batch, 2 * batch):
        found = estimate(counted, count, card_bytes)
        row["counted"][str(count)] = found.bytes - found.parts.other


# --- the real training --------------------------------------------------------------------------------------------


class Trainings:
    """Runs one network's training at one micro-batch after the other."""

    def __init__(self, name: str) -> None:
        import torch  # noqa: PLC0415 - the parent needs none
        from estimates_models import train  # noqa: PLC0415 - lies next to this file

        self._name, self._train, self.cuda = name, train, torch.cuda
        self.steps = TRUE_STEPS
        self.cuda.init()

    def run(self, count: int) -> bool:
        """Train a few steps; return whether the memory sufficed."""
        gc.collect()
        self.cuda.empty_cache()
        self.cuda.reset_peak_memory_stats()
        try:
            self._train(self._name, count, BATCHES[self._name][1], self.steps)  # type: ignore[no-untyped-call]  # a script
        except self.cuda.OutOfMemoryError:
            return False
        return True


def run_truth(name: str) -> None:
    """Train at the configured micro-batch and twice that."""
    trainings, batch = Trainings(name), BATCHES[name][0]
    cuda = trainings.cuda
    found: dict[str, Any] = {"reserved": {}, "allocated": {}}
    for count in (batch, 2 * batch):
        trainings.run(count)
        found["reserved"][count] = cuda.max_memory_reserved()
        found["allocated"][count] = cuda.max_memory_allocated()
    sys.stdout.write(json.dumps(found) + "\n")


# --- the table ----------------------------------------------------------------------------------------------------


def share(found: float, true: float) -> float:
    """Return the error of an estimate as a share of the truth."""
    return found / true - 1


HEAD = f"{'network':36} {'':5} {'batch':>5} {'true':>9} {'probe':>7} {'x2 line':>7} {'no GPU':>7} {'x2':>7}\n"


def find_errors(row: dict[str, Any]) -> dict[str, list[float]]:
    """Return a network's errors by how they came about."""
    batch, truth = row["batch"], row["truth"]
    true = {count: truth["reserved"][str(count)] for count in (batch, 2 * batch)}
    return {
        "probe": [share(row["probe"], true[batch])],
        "predicted": [share(row["predicted"], true[2 * batch])],
        "counted": [share(row["counted"][str(count)], value) for count, value in true.items()],
    }


def print_row(row: dict[str, Any]) -> None:
    """Print a network's errors."""
    batch, truth = row["batch"], row["truth"]
    columns = [f"{value:+7.1%}" for values in find_errors(row).values() for value in values]
    first = f"{row['name']:36} {row['precision']:5} {batch:5} {truth['reserved'][str(batch)] / GIB:5.2f} GiB"
    sys.stdout.write(f"{first} {' '.join(columns)}\n")
    sys.stdout.flush()


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the medians and the worst of the errors."""
    found = [find_errors(row) for row in rows]
    for name in found[0] if found else ():
        values = [value for errors in found for value in errors[name]]
        worst = max(values, key=abs)
        middle = statistics.median(abs(value) for value in values)
        sys.stdout.write(f"{name}: median {middle:.1%}, worst {worst:+.1%} of {len(values)}\n")
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--truth"]:
        run_truth(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card-gib", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--only", action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--earlier", type=Path, help="the --json file of a run whose points are used again")
    given = parser.parse_args()
    earlier = {row["name"]: row for row in json.loads(given.earlier.read_text())} if given.earlier else {}
    rows: list[dict[str, Any]] = []

    def end(*_: object) -> None:
        print_table(rows)
        os._exit(143)

    signal.signal(signal.SIGTERM, end)
    sys.stdout.write(HEAD)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        card_bytes = round(given.card_gib * GIB)
        names = sorted(given.only or BATCHES, key=earlier.__contains__)
        asked = {pool.submit(compare, name, card_bytes, earlier): name for name in names}
        for done in concurrent.futures.as_completed(asked):
            try:
                rows.append(done.result())
                print_row(rows[-1])
            except Exception as error:  # noqa: BLE001 - a network that fails is a row that is missing
                sys.stdout.write(f"{asked[done]}: {type(error).__name__}: {error}\n")
                sys.stdout.flush()
            if given.json is not None:
                given.json.write_text(json.dumps(rows))
    print_table(rows)


if __name__ == "__main__":
    main()
